"""Faults on request, as far as the agent causes them: real signals, real exits, a real out-of-memory kill.

A drill that cannot be done is answered with the reason (DrillFailed), never done by halves: memory is only eaten inside
a limited cgroup, because otherwise the kernel might kill an unrelated process.
"""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path

from everstep.agent.processes.ailments import Ailments
from everstep.agent.ranks.workers import Answers, Group, Worker
from everstep.core.faults.drills import ANOMALY_KINDS, HANG_KINDS, MACHINE_KINDS
from everstep.linux import proc
from everstep.model.actions import Inject
from everstep.model.events import DrillFailed
from everstep.probes.oom import memory_cgroup
from everstep.wire.frames import Drill, Drilled
from everstep.worker.drills import PATIENCE_S
from everstep.worker.link.runtime import DRILL_SIGNAL

REACTION_S = 10.0
"""A rank hears a drill when its main thread is in Python. Longer than any usual step."""

LOOK_S = 0.5
"""How often a rank that does not answer is asked whether it lives."""

_OOM_LIMIT_BYTES = 192 << 20
_UNANSWERED = ("python-loop", "native-call")
"""The rank hangs where it hears of it."""

_IN_WORKER = ("exit", "raise", "oom", *(kind for kind in HANG_KINDS if kind != "stop"), *ANOMALY_KINDS)


class DrillRefused(Exception):  # noqa: N818 - an answer
    """The message says why the drill cannot be done."""


async def carry_out(action: Inject, group: Group | None, fence: int, ailments: Ailments) -> DrillFailed | None:
    """Cause the fault. An answer only if that could not be."""
    worker = group.workers.get(action.rank) if group is not None and action.rank is not None else None
    try:
        if action.generation not in (-1, fence):
            raise DrillRefused(f"generation {action.generation} is over")
        if action.kind in MACHINE_KINDS:
            await _fall_ill(action, group, ailments)
        else:
            await _inject(action, worker)
    except DrillRefused as refused:
        return DrillFailed(at=time.time(), drill=action.drill, why=str(refused))
    return None


async def _fall_ill(action: Inject, group: Group | None, ailments: Ailments) -> None:
    """The machine has it from now on: the processes that run, and all that are still to come. Raises DrillRefused."""
    ailments.add(action)
    for worker in list(group.workers.values()) if group is not None else []:
        if worker.is_alive:
            for request in ailments.of_process(worker.local_rank):
                if request["kind"] == action.kind:
                    await _ask(action, worker, request["options"])


async def _inject(action: Inject, worker: Worker | None) -> None:
    """Raises DrillRefused."""
    kind = action.kind
    if kind == "kill-agent":
        os.kill(os.getpid(), signal.SIGKILL)
    if worker is None or not worker.is_alive:
        raise DrillRefused("the rank has no live process on this node")
    if kind == "kill-rank":
        worker.send_signal(signal.SIGKILL)
        return
    if kind == "stop":
        worker.send_signal(signal.SIGSTOP)
        return
    if kind not in _IN_WORKER:
        raise DrillRefused(f"there is no drill {kind!r}")
    folder = _confine(worker) if kind == "oom" else None
    try:
        await _ask(action, worker)
    finally:
        if folder is not None:
            with contextlib.suppress(OSError):
                folder.rmdir()


def on_answer(worker: Worker, told: Drilled) -> None:
    """The rank has armed the drill, or done it, or says why it cannot."""
    answers = worker.drills.get(told["drilled"] or "")
    if answers is not None:
        answers.put_nowait((told["why"], told["is_armed"]))


async def _ask(action: Inject, worker: Worker, options: Mapping[str, object] | None = None) -> None:
    """Put the request on the link, ring, and see that it is heard: the rank answers, ends or hangs."""
    deadline = asyncio.get_running_loop().time() + REACTION_S
    await _until_entered(worker, deadline)
    frame: Drill = {
        "do": "drill",
        "kind": action.kind,
        "id": action.drill,
        "options": dict(action.options if options is None else options),
    }
    answers: Answers = asyncio.Queue()
    worker.drills[action.drill] = answers
    try:
        # A program that became another by exec has no handler, and the signal would end it. The link's end may not have
        # been heard of yet.
        if not proc.catches(worker.pid, DRILL_SIGNAL) or worker.channel is None or not worker.channel.send(frame):
            raise DrillRefused("the rank's link is closed: there is no runtime of ours in this program")
        worker.send_signal(DRILL_SIGNAL)
        if action.kind in (*HANG_KINDS, *ANOMALY_KINDS, *MACHINE_KINDS):
            if action.kind not in _UNANSWERED:
                await _done(worker, answers, deadline)
        else:
            await _until_ended(worker, deadline)
    finally:
        worker.drills.pop(action.drill, None)


async def _until_entered(worker: Worker, deadline: float) -> None:
    loop = asyncio.get_running_loop()
    while worker.is_alive and not worker.has_entered and loop.time() < deadline:
        await asyncio.sleep(0.02)
    if not worker.has_entered:
        raise DrillRefused("the rank does not listen: its program has not imported torch")


async def _until_ended(worker: Worker, deadline: float) -> None:
    while worker.is_alive:
        if asyncio.get_running_loop().time() > deadline:
            raise DrillRefused(
                f"the rank was still alive after {REACTION_S:.0f} s: it sits in native code, or its program caught it"
            )
        await asyncio.sleep(0.02)


async def _done(worker: Worker, answers: Answers, deadline: float) -> None:
    """Wait for the fault itself. A rank that ends, or whose generation does, needs no answer any more."""
    late = f"the rank did not answer within {REACTION_S:.0f} s: its main thread is not in Python"
    while worker.is_alive:
        try:
            async with asyncio.timeout(LOOK_S):
                why_not, is_armed = await answers.get()
        except TimeoutError:
            if asyncio.get_running_loop().time() > deadline:
                raise DrillRefused(late) from None
            continue
        if why_not:
            raise DrillRefused(why_not)
        if not is_armed:
            return
        deadline = asyncio.get_running_loop().time() + PATIENCE_S + REACTION_S
        late = f"the program made no step or collective of the fitting kind within {PATIENCE_S:.0f} s; it is off again"


def _confine(worker: Worker) -> Path:
    """Move the rank into a memory cgroup of its own with little room. Raises DrillRefused."""
    cgroup = memory_cgroup(worker.pid)
    if cgroup is None:
        raise DrillRefused("no memory cgroup is mounted, so the kill could hit any process of the machine")
    # v2 forbids processes beside child groups: there the new group is a sibling.
    parent = cgroup.path if cgroup.version == 1 else cgroup.path.parent
    folder = parent / f"everstep-drill-{worker.pid}"
    limit = "memory.limit_in_bytes" if cgroup.version == 1 else "memory.max"
    try:
        folder.mkdir()
        (folder / limit).write_text(str(_OOM_LIMIT_BYTES))
        for name, value in (("memory.memsw.limit_in_bytes", str(_OOM_LIMIT_BYTES)), ("memory.swap.max", "0")):
            if (folder / name).exists():
                (folder / name).write_text(value)
        (folder / "cgroup.procs").write_text(str(worker.pid))
    except OSError as error:
        with contextlib.suppress(OSError):
            folder.rmdir()
        raise DrillRefused(f"cannot make a limited memory cgroup in {parent}: {error.strerror}") from error
    worker.oom.refresh()
    return folder
