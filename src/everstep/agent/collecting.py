"""Evidence of a hang, on request: process states, stacks and flight records of this node's live ranks, into files.

One envelope per rank (evidence/decode.py has its form) and torch's flight record beside it. What does not come in time
is named as missing. The ranks are only looked at; nothing here stops or slows them.
"""

import asyncio
import json
import os
import time
from pathlib import Path

from everstep.agent.stacks import Stacks
from everstep.agent.workers import Group, Worker
from everstep.model.actions import CollectEvidence
from everstep.model.events import EvidenceCollected
from everstep.model.facts import Gathered
from everstep.probes.process import descendants, usage

EVIDENCE = "evidence"
MAX_CHILDREN = 8
"""Stacks of so many children of a rank; of all, the states."""


async def collect(action: CollectEvidence, group: Group | None, run_dir: Path, stacks: Stacks) -> EvidenceCollected:
    """Never raises but for cancellation: what fails is in `unavailable`."""
    began = time.monotonic()
    workers: list[Worker] = []
    if group is not None and group.generation == action.generation:
        workers = [worker for worker in group.workers.values() if worker.is_alive]
    folder = Path(EVIDENCE) / action.incident / f"gen-{action.generation}"
    gathered = await asyncio.gather(*(_of_rank(worker, action, run_dir, folder, stacks) for worker in workers))
    return EvidenceCollected(
        at=time.time(),
        node=action.node,
        generation=action.generation,
        incident=action.incident,
        gathered=tuple(gathered),
        took_s=time.monotonic() - began,
    )


async def _of_rank(worker: Worker, action: CollectEvidence, run_dir: Path, folder: Path, stacks: Stacks) -> Gathered:
    name = folder / f"rank-{worker.rank}.json"
    has: list[str] = []
    missing: list[str] = []
    try:
        (run_dir / folder).mkdir(parents=True, exist_ok=True)
        pids = [worker.pid, *descendants(worker.pid)]
        states = [[pid, use.state] for pid in pids if (use := usage(pid)) is not None]
        record = run_dir / folder / f"rank-{worker.rank}-flight.json"
        looks, no_record = await asyncio.gather(
            asyncio.gather(*(stacks.take(pid, action.limit_s) for pid in pids[: 1 + MAX_CHILDREN])),
            _flight_record(worker, record, action.limit_s / 2),
        )
        threads = [thread for found, _ in looks for thread in found]
        has = [
            what
            for what, there in (("states", states), ("stack", looks[0][0]), ("flight record", not no_record))
            if there
        ]
        missing = [f"stack of {pid}: {why}" for pid, (_, why) in zip(pids, looks, strict=False) if why]
        missing += [f"flight record: {no_record}"] if no_record else []
        envelope = {
            "everstep_evidence": 1,
            "rank": worker.rank,
            "generation": action.generation,
            "at": time.time(),
            "stacks": threads or None,
            "states": states,
            "unavailable": missing,
        }
        part = run_dir / folder / f"rank-{worker.rank}.part"
        part.write_text(json.dumps(envelope))
        os.replace(part, run_dir / name)  # noqa: PTH105 - one look for everybody
    except OSError as error:
        missing.append(f"evidence cannot be written: {error.strerror or error}")
    return Gathered(rank=worker.rank, file=str(name), has=tuple(has), unavailable=tuple(missing))


async def _flight_record(worker: Worker, path: Path, limit_s: float) -> str:
    if worker.watch is None:
        return "there is no watch thread in this program"
    return await worker.watch.dump(path, limit_s)
