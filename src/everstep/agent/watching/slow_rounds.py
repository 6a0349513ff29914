"""A node's part in a round of the fail-slow vote: when each rank entered its newest collectives, and what it did since
the round before.

It decides nothing. What a rank cannot report is listed with the reason. Making the record costs the rank some
microseconds of its GIL per entry; a rank whose record is large is asked in fewer rounds, so that it never costs more
than `MAX_SHARE`. Called by the node at multiples of the policy's `slow_round_s`, on all nodes at the same moment, so
that whatever it costs is one short pause and not one per rank.
"""

import asyncio
import contextlib
import math
import os
from collections import deque
from functools import partial

import msgspec

from everstep.agent.memory.board import Board
from everstep.agent.ranks.workers import Group, Worker
from everstep.agent.senses.aside import aside
from everstep.agent.watching.kernel_views import KernelViews
from everstep.agent.watching.rank_ops import Declared, Entry, Streams, declared, entries_of
from everstep.analyzer.collective.device import DeviceOp
from everstep.analyzer.slowness import off_cpu
from everstep.analyzer.slowness.off_cpu import KernelView
from everstep.analyzer.slowness.usual import Histories
from everstep.linux import proc
from everstep.linux.accelerators import has_accelerator
from everstep.model.facts import RankRound, Taken
from everstep.model.observations import RoundReported
from everstep.probes.nccl import ring
from everstep.probes.process import descendants
from everstep.probes.rank.rivals import find_rivals, is_bound, throttled_s
from everstep.probes.rank.sending import Sending, Sent

MAX_SHARE = 0.002
"""Share of a rank's time that may be spent on its records."""

MAX_ARRIVALS = 512
MIN_ARRIVALS = 32
MAX_ARRIVALS_OF_JOB = 50_000
"""Arrivals of a rank in a round, and of all ranks together: the controller looks at each of them."""

ANSWER_LIMIT_S = 2.0
LOOKED_S = 3.0
"""The watch thread looks twice a second. Longer ago: the rank is stopped, or has no process groups yet."""

STANDS_S = 0.5
"""And twice its usual step without one: then a rank is not asked."""

MOVES_S = 2.0
MOVES_LOOKS = 10
"""Longer than between two looks of a rank's watch thread, also of one that has to wait for a CPU."""

MAX_KIND = 60

WAITS_SHARE = 0.05
"""Share of the window: a rank that waits so long for a CPU has a neighbour that is worth a scan of all processes."""

MAX_TAKERS = 8
MAX_RIVALS = 300


class _Totals(msgspec.Struct, frozen=True):
    """Cumulative figures of a rank at one moment."""

    at: float
    step: int
    data_s: float | None
    gc_s: float | None
    work: float | None
    delay_s: float | None
    throttled_s: float | None = None
    io_s: float | None = None
    cpu_s: float | None = None
    record_id: int = -1  # newest collective that was looked at


class SlowRounds:
    """Knows where each rank stood in the round before."""

    def __init__(self, node: str, board: Board, round_s: float, views: KernelViews | None = None) -> None:
        self._node = node
        self._views = views or KernelViews(None)
        self._usual: dict[int, Histories] = {}  # process id -> what the kernel usually sees of it
        self._board = board
        self._budget_s = MAX_SHARE * max(round_s, 0.001)
        self._before: dict[int, _Totals] = {}  # process id -> totals
        self._took_s: dict[int, deque[float]] = {}
        self._own: set[int] = set()  # processes of the run on this node
        self._streams = Streams()
        self._sending = Sending()

    async def look(self, group: Group, number: int, world_size: int, now: float) -> RoundReported:
        """Ask all live ranks at once."""
        alive = [worker for worker in group.workers.values() if worker.is_alive]
        pids = {worker.pid for worker in alive}
        self._before = {pid: totals for pid, totals in self._before.items() if pid in pids}
        self._took_s = {pid: took_s for pid, took_s in self._took_s.items() if pid in pids}
        ours = {pid for each in pids for pid in (each, *descendants(each))}
        self._own = {os.getpid(), *ours}
        self._streams.begin(pids)
        looking = asyncio.create_task(self._views.look(ours))  # beside the ranks: they are asked at the same moment
        limit = max(MIN_ARRIVALS, min(MAX_ARRIVALS, MAX_ARRIVALS_OF_JOB // max(1, world_size)))
        try:
            found = await asyncio.gather(*(self._of_rank(worker, number, limit, now) for worker in alive))
            sent = await aside(partial(self._sending.look, list(pids), now), "everstep-sending")
            view = await looking
        finally:
            looking.cancel()
        ranks = self._sharpened(_with_sent([each for each in found if each], alive, sent), alive, view, now)
        return RoundReported(
            at=now,
            node=self._node,
            generation=group.generation,
            round=number,
            ranks=ranks,
            collectives=self._streams.all(),
        )

    async def _of_rank(self, worker: Worker, number: int, limit: int, now: float) -> RankRound | None:
        totals = self._totals(worker, now)
        if number % self._every(worker.pid):
            return None
        before = self._before.get(worker.pid)
        if totals is None:
            await self._look_apart(worker, limit, "it makes no steps")
            return None
        if before is not None and totals.step < before.step:
            before = None  # counted anew, now by the program itself
        if worker.watch is None:
            return self._nothing(worker, "there is no watch thread in this program")
        if before is not None and totals.step <= before.step:
            await self._look_apart(worker, limit, "no step since the round before")
            return _nothing(worker, "no step since the round before")
        if before is not None and self._stands(worker, before, totals):
            return self._nothing(worker, "it stands still at the moment")
        _, looked_at = self._board.communication(worker.local_rank)
        if looked_at is None or now - looked_at > LOOKED_S:
            # Not asked: it would answer all that it was asked, one after the other, when it comes back.
            return self._nothing(worker, "its watch thread sees no process groups")
        try:
            entries, groups = await self._ask(worker, limit)
            entries = _timely(entries)
        except ValueError as error:  # also msgspec's
            return _nothing(worker, str(error)[:200])
        # Again: the answer took a while, and collectives and steps should be counted up to the same moment.
        totals = self._totals(worker, now) or totals
        newest = max(entry.record_id for entry in entries)
        self._before[worker.pid] = msgspec.structs.replace(totals, record_id=newest)
        if before is None:
            before = self._at_first_step(worker, entries)
        if before is None:
            return _nothing(worker, "the first round")
        found = _round(worker, entries, totals, before, limit, groups)
        rivals, takers = await self._rivals(worker, found)
        return msgspec.structs.replace(found, rivals=rivals, takers=takers)

    async def _ask(self, worker: Worker, limit: int) -> tuple[list[Entry], Declared]:
        """The rank's record, of which the stream of its collectives is kept. Raises ValueError."""
        assert worker.watch is not None
        answer, data = await worker.watch.entered(ANSWER_LIMIT_S)
        took_s = answer.get("took_s")
        if isinstance(took_s, float) and 0 <= took_s <= ANSWER_LIMIT_S:
            self._took_s.setdefault(worker.pid, deque(maxlen=5)).append(took_s)
        try:
            entries, groups = entries_of(answer, data), declared(answer)
        except ValueError as error:
            self._streams.nothing(worker.rank, str(error))
            raise
        device = _of_device(worker.pid) if any(entry.is_queued for entry in entries) else ()
        self._streams.take(worker.rank, worker.pid, entries, answer, groups, limit, device)
        return entries, groups

    async def _look_apart(self, worker: Worker, limit: int, why: str) -> None:
        """The stream of a rank that has no vote in this round. Only of one that communicates at this moment: making a
        record would look like a sign of life of one that hangs."""
        if worker.watch is None or not await self._moves(worker):
            self._streams.nothing(worker.rank, f"{why}, and it entered no collective for {MOVES_S:g} s")
            return
        with contextlib.suppress(ValueError):
            await self._ask(worker, limit)

    async def _moves(self, worker: Worker) -> bool:
        """Whether it communicates at this moment. On a busy machine its watch thread looks late."""
        number, _ = self._board.communication(worker.local_rank)
        for _ in range(MOVES_LOOKS):
            await asyncio.sleep(MOVES_S / MOVES_LOOKS)
            newer, _ = self._board.communication(worker.local_rank)
            if number is not None and newer is not None and newer > number:
                return True
        return False

    def _nothing(self, worker: Worker, why: str) -> RankRound:
        """Neither for the vote nor for the table of collectives."""
        self._streams.nothing(worker.rank, why)
        return _nothing(worker, why)

    def _sharpened(
        self, found: list[RankRound], alive: list[Worker], view: KernelView | None, now: float
    ) -> tuple[RankRound, ...]:
        """With what the kernel saw of their threads, which names who had a CPU more exactly than two looks at /proc."""
        if view is None:
            return tuple(found)
        processes = {worker.rank: (worker.pid, {worker.pid, *descendants(worker.pid)}) for worker in alive}
        shares = {rank: off_cpu.shares(view, pids, self._own) for rank, (_, pids) in processes.items()}
        self._usual = {pid: self._usual.get(pid) or Histories() for pid, _ in processes.values()}
        sharper = []
        for each in found:
            pid, pids = processes[each.rank]
            peers = [other for rank, other in shares.items() if rank != each.rank]
            usual = self._usual[pid].note(now, shares[each.rank], peers)
            waits = off_cpu.waits_text(view, (pid,), self._own)[:MAX_RIVALS]
            lines = tuple(line[:MAX_RIVALS] for line in off_cpu.says(view, pid, pids, self._own, usual))
            takers = tuple(each for each in off_cpu.takers(view, pid, self._own) if is_bound(each.pid))
            held = off_cpu.held(view, pid, self._own)
            sharper.append(
                msgspec.structs.replace(each, rivals=waits or each.rivals, kernel=lines, takers=takers, held=held)
            )
        return tuple(sharper)

    def close(self) -> None:
        """End what was started to look."""
        self._views.close()

    async def _rivals(self, worker: Worker, found: RankRound) -> tuple[str, tuple[Taken, ...] | None]:
        """Return which processes use the rank's CPU, if it waits for one for long; and by how much of its time those
        that are bound to some CPUs keep it waiting. None: unknown."""
        if found.delay_s is None or found.window_s <= 0:
            return "", None
        share = found.delay_s / found.window_s
        if share < WAITS_SHARE:
            return "", ()  # nobody takes more than that
        try:
            seen = await aside(partial(find_rivals, worker.pid, self._own), "everstep-rivals")
        except OSError:
            return "", None
        takers = tuple(msgspec.structs.replace(each, share=each.share * share) for each in seen.bound[:MAX_TAKERS])
        return seen.text[:MAX_RIVALS], takers

    def _stands(self, worker: Worker, before: _Totals, totals: _Totals) -> bool:
        """Whether its step takes much longer than usual. Making a record uses the CPU, and would look like a sign of
        life of a job that hangs."""
        last_at = self._board.account(worker.local_rank).last_step_at
        usual_s = (totals.at - before.at) / (totals.step - before.step)
        return last_at is not None and totals.at - last_at > max(STANDS_S, 2 * usual_s)

    def _totals(self, worker: Worker, now: float) -> _Totals | None:
        account = self._board.account(worker.local_rank)
        if account.last_step is None:
            return None
        data_s, gc_s, work = self._board.loads(worker.local_rank)
        ran = proc.sched_ns(worker.pid)
        return _Totals(
            at=now,
            step=account.last_step,
            data_s=data_s,
            gc_s=gc_s,
            work=work,
            delay_s=None if ran is None else ran[1] / 1e9,
            throttled_s=throttled_s(worker.pid),
            io_s=getattr(worker, "disk_s", None),
            cpu_s=None if ran is None or has_accelerator(worker.pid) else ran[0] / 1e9,
        )

    def _at_first_step(self, worker: Worker, entries: list[Entry]) -> _Totals | None:
        """Where the rank stood after its first step, which is no step like the others, or where its record begins when
        that is later. Cumulative figures are unknown from then on."""
        account = self._board.account(worker.local_rank)
        first, first_at, last, last_at = (
            account.first_step,
            account.first_step_at,
            account.last_step,
            account.last_step_at,
        )
        if first is None or first_at is None or last is None or last_at is None or last <= first or last_at <= first_at:
            return None
        oldest = min(entries, key=lambda entry: entry.record_id)
        oldest_at = oldest.time_created_ns / 1e9
        if oldest.record_id == 0 or oldest_at <= first_at:
            earlier = [entry.record_id for entry in entries if entry.time_created_ns / 1e9 <= first_at]
            return _Totals(first_at, first, None, None, None, None, record_id=max(earlier, default=-1))
        # The first step is overwritten: estimate its number from the usual step time.
        num_steps = round((last_at - oldest_at) * (last - first) / (last_at - first_at))
        return _Totals(oldest_at, last - num_steps, None, None, None, None, record_id=oldest.record_id)

    def _every(self, pid: int) -> int:
        """In every so many rounds: the record must stay cheap. The quickest of some: others were interrupted."""
        took_s = min(self._took_s.get(pid, (0.0,)))
        return max(1, math.ceil(took_s / self._budget_s))


def _with_sent(found: list[RankRound], alive: list[Worker], sent: dict[int, Sent]) -> list[RankRound]:
    known = {worker.rank: sent[worker.pid] for worker in alive if worker.pid in sent}
    return [_told(each, known[each.rank]) if each.rank in known else each for each in found]


def _told(each: RankRound, sent: Sent) -> RankRound:
    """Add what the rank sent to its round, also for a rank without a step: where a link loses much, steps do not
    end."""
    return msgspec.structs.replace(
        each, send_s=sent.busy_s, send_share=sent.share, sent=sent.says, lost=sent.lost, unread=sent.unread
    )


def _of_device(pid: int) -> tuple[DeviceOp, ...]:
    """Return what NCCL's profiler plug-in recorded in this process, as far as that can be read."""
    try:
        found = ring.read(pid)
    except ring.RingError:
        return ()  # the table then says that the times are unknown
    return () if found is None else found.ops


def _timely(entries: list[Entry]) -> list[Entry]:
    """Those of which it is known when the rank entered them. Raises ValueError with the reason why there are none."""
    known = [entry for entry in entries if not entry.is_queued]
    if not known:
        raise ValueError(
            "of NCCL's collectives it is known when the host queued them, not when the device entered them"
        )
    return known


def _round(
    worker: Worker,
    entries: list[Entry],
    now: _Totals,
    before: _Totals,
    limit: int,
    groups: Declared,
) -> RankRound:
    new = sorted((entry for entry in entries if entry.record_id > before.record_id), key=lambda e: e.record_id)
    kinds: dict[tuple[str, str], int] = {}
    arrivals = []
    for entry in new[-limit:]:
        kind = kinds.setdefault((entry.process_group[0], _kind(entry)), len(kinds))
        arrivals.append((kind, entry.collective_seq_id, entry.time_created_ns / 1e9))
    titles = {entry.process_group[0]: entry.process_group[1] for entry in new[-limit:]}
    newest = new[-1].record_id if new else before.record_id
    return RankRound(
        rank=worker.rank,
        num_steps=now.step - before.step,
        window_s=now.at - before.at,
        num_entered=newest - before.record_id,
        kinds=tuple(kinds),
        arrivals=tuple(arrivals),
        groups={name: ranks for name, (_, ranks) in groups.items()},
        titles=titles | {name: title for name, (title, _) in groups.items()},
        data_s=_difference(now.data_s, before.data_s),
        gc_s=_difference(now.gc_s, before.gc_s),
        delay_s=_difference(now.delay_s, before.delay_s),
        throttled_s=_difference(now.throttled_s, before.throttled_s),
        io_s=_difference(now.io_s, before.io_s),
        cpu_s=_difference(now.cpu_s, before.cpu_s),
        work=_difference(now.work, before.work),
    )


def _kind(entry: Entry) -> str:
    return f"{entry.op} {entry.input_sizes}"[:MAX_KIND]


def _difference(now: float | None, before: float | None) -> float | None:
    return None if now is None or before is None else max(0.0, now - before)


def _nothing(worker: Worker, why: str) -> RankRound:
    return RankRound(rank=worker.rank, num_steps=0, window_s=0.0, missing=why)
