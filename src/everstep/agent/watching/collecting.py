"""Evidence on request: process states, stacks, loads and flight records of this node's live ranks, into files.

One envelope per rank (evidence/decode.py has its form) and torch's flight record beside it. What does not come in time
is named as missing. The ranks are only looked at; nothing here stops or slows them, but for one signal to a rank that
answers nothing else.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from everstep.agent.memory.board import Board
from everstep.agent.ranks.workers import Group, Worker
from everstep.agent.watching.loads import Loads, measure
from everstep.agent.watching.stacks import SAMPLE_S, Look, Stacks
from everstep.analyzer.observations.records import KernelThread, ThreadWait
from everstep.model.actions import CollectEvidence
from everstep.model.events import EvidenceCollected
from everstep.model.facts import Gathered
from everstep.model.text import without_surrogates
from everstep.probes.process import cpu_left_s, descendants, usage
from everstep.probes.rank.native import native_thread, native_threads
from everstep.probes.rank.own_sockets import with_own_sockets
from everstep.probes.rank.thread_waits import settled_waits, with_family, with_ranks
from everstep.worker.process.board import Activity, Phase

EVIDENCE = "evidence"
MAX_CHILDREN = 8
"""Stacks of so many children of a rank; of all, the states."""

DEAF_S = 1.5
"""A watch thread that did not look for so long, three times its interval, will hardly answer: the rank is stopped, or
something holds the GIL."""

DEAF_LIMIT_S = 0.2
"""Time that it gets all the same. The others wait for it, and the job hangs meanwhile."""

_INSTEAD = {"sampler": "the rank's own sampler was used", "signal": "frames that it wrote on a signal were used"}


async def collect(
    action: CollectEvidence, group: Group | None, run_dir: Path, stacks: Stacks, board: Board
) -> EvidenceCollected:
    """Never raises but for cancellation: what fails is in `unavailable`."""
    began = time.monotonic()
    workers: list[Worker] = []
    if group is not None and group.generation == action.generation:
        workers = [worker for worker in group.workers.values() if worker.is_alive]
    sweep = _Sweep(action, workers, run_dir, stacks, board, None if group is None else group.store_port)
    try:
        gathered = await asyncio.gather(*(sweep.of_rank(worker) for worker in workers))
    finally:
        sweep.cancel()
    return EvidenceCollected(
        at=time.time(),
        node=action.node,
        generation=action.generation,
        incident=action.incident,
        gathered=tuple(gathered),
        took_s=time.monotonic() - began,
    )


def _encoded(envelope: dict[str, object]) -> bytes:
    try:
        return msgspec.json.encode(envelope)
    except UnicodeEncodeError:  # the name of a file
        return msgspec.json.encode(without_surrogates(msgspec.to_builtins(envelope)))


class _Sweep:
    """One look at all ranks. Loads are measured for all together; stacks of ranks come before those of children."""

    def __init__(
        self,
        action: CollectEvidence,
        workers: Sequence[Worker],
        run_dir: Path,
        stacks: Stacks,
        board: Board,
        store_port: int | None,
    ) -> None:
        self._store_port = store_port
        self._action = action
        self._run_dir = run_dir
        self._folder = Path(EVIDENCE) / action.incident / f"gen-{action.generation}"
        self._stacks = stacks
        self._board = board
        self._ends_at = time.monotonic() + action.limit_s
        self._pids = {worker.rank: [worker.pid, *descendants(worker.pid)] for worker in workers}
        self._loads = asyncio.create_task(measure(self._pids))
        self._looks = {
            worker.rank: asyncio.create_task(
                stacks.of_rank(
                    worker, action.limit_s, by_signal=True, sample_s=DEAF_LIMIT_S if self._is_deaf(worker) else SAMPLE_S
                )
            )
            for worker in workers
        }

    def cancel(self) -> None:
        for task in (self._loads, *self._looks.values()):
            task.cancel()

    async def of_rank(self, worker: Worker) -> Gathered:
        name = self._folder / f"rank-{worker.rank}.json"
        pids = self._pids[worker.rank]
        has: list[str] = []
        missing: list[str] = []
        try:
            (self._run_dir / self._folder).mkdir(parents=True, exist_ok=True)
            states = [[pid, use.state] for pid in pids if (use := usage(pid)) is not None]
            progress = said(self._board, worker)
            look, of_children, no_record, loads, waits = await asyncio.gather(
                asyncio.shield(self._looks[worker.rank]),
                self._of_children(pids[1 : 1 + MAX_CHILDREN]),
                self._flight_record(worker),
                asyncio.shield(self._loads),
                asyncio.to_thread(_waits, pids, self._pids, self._store_port),
            )
            native = _native(worker.pid, look, states)
            missing = _missing(look, pids, of_children, native, no_record)
            present = (
                ("states", states),
                ("stack", look.threads),
                ("kernel", native),
                ("flight record", not no_record),
            )
            has = [what for what, there in present if there]
            envelope = {
                "everstep_evidence": 1,
                "rank": worker.rank,
                "generation": self._action.generation,
                "at": time.time(),
                "stacks": [*look.threads, *(thread for found, _ in of_children for thread in found)] or None,
                "stack_source": look.source,
                "states": states,
                "cpu_left_s": cpu_left_s(worker.pid),
                "native": native,
                "waits": waits,
                **progress,
                **_loads_of(worker.rank, loads),
                "unavailable": missing,
            }
            part = self._run_dir / self._folder / f"rank-{worker.rank}.part"
            part.write_bytes(_encoded(envelope))
            part.replace(self._run_dir / name)  # one look for everybody
        except OSError as error:
            missing.append(f"evidence cannot be written: {error.strerror or error}")
        return Gathered(rank=worker.rank, file=str(name), has=tuple(has), unavailable=tuple(missing))

    async def _of_children(self, pids: Sequence[int]) -> list[tuple[list[object], str]]:
        if not pids:
            return []
        await asyncio.wait(self._looks.values(), timeout=self._action.limit_s / 2)
        left_s = max(0.1, self._ends_at - time.monotonic())
        return list(await asyncio.gather(*(self._stacks.take(pid, left_s) for pid in pids)))

    async def _flight_record(self, worker: Worker) -> str:
        if worker.watch is None:
            return "there is no watch thread in this program"
        path = self._run_dir / self._folder / f"rank-{worker.rank}-flight.json"
        return await worker.watch.dump(path, DEAF_LIMIT_S if self._is_deaf(worker) else self._action.limit_s / 2)

    def _is_deaf(self, worker: Worker) -> bool:
        _, looked_at = self._board.communication(worker.local_rank)
        return looked_at is not None and time.time() - looked_at > DEAF_S


def _waits(pids: Sequence[int], pids_of: Mapping[int, Sequence[int]], store_port: int | None) -> list[ThreadWait]:
    seen = pids[: 1 + MAX_CHILDREN]
    waits = with_own_sockets(with_family(settled_waits(seen, store_port), pids), pids)
    found = with_ranks(waits, pids_of)
    more = [ThreadWait(pid=pid, tid=pid, name="not looked at") for pid in pids[len(seen) :]]
    return [*found, *more]


def _loads_of(rank: int, loads: Loads) -> dict[str, object]:
    return {
        "load": loads.by_rank.get(rank),
        "gpus": loads.gpus.get(rank, ()),
        "links": loads.links,
        "unsupported": loads.missing,
    }


def said(board: Board, worker: Worker) -> dict[str, object]:
    """Return the rank's progress as its line on the board has it."""
    account, now = board.account(worker.local_rank), time.time()
    at = account.last_step_at
    return {
        "phase": _phase(board.phase(worker.local_rank), board.activity(worker.local_rank)),
        "step": account.last_step,
        "step_age_s": None if at is None else max(0.0, now - at),
    }


def _phase(phase: int, activity: int) -> str:
    """The phase in words. Within steps the activity is more specific."""
    try:
        return str((Activity(activity) if phase == Phase.STEPPING else Phase(phase)).name.lower())
    except ValueError:  # of a newer worker
        return ""


def _native(pid: int, look: Look, states: list[list[object]]) -> list[KernelThread]:
    """All threads where there is no Python stack; else what sleeps uninterruptibly, the rank or a child of it."""
    if not look.threads:
        return native_threads(pid)
    asleep = [each for each, state in states if state == "D" and isinstance(each, int)]
    return [thread for each in asleep[:MAX_CHILDREN] if (thread := native_thread(each, each)) is not None]


def _missing(
    look: Look,
    pids: list[int],
    of_children: list[tuple[list[object], str]],
    native: list[KernelThread],
    no_record: str,
) -> list[str]:
    """Each thing that could not be had, and what was used instead."""
    instead = f"; {_INSTEAD.get(look.source, '')}" if look.threads else ""
    found = [f"stack of {pids[0]}: {why}{instead}" for why in look.missing]
    found += [f"stack of {pid}: {why}" for pid, (_, why) in zip(pids[1:], of_children, strict=False) if why]
    found += sorted({f"kernel's view: {thread.why}" for thread in native if thread.why})
    return [*found, *([f"flight record: {no_record}"] if no_record else [])]
