"""Faults on request, as far as the agent causes them: real signals, real exits, a real out-of-memory kill.

What cannot be done is answered with the reason (DrillFailed), never done by halves: memory is only eaten inside a
limited cgroup, because otherwise the kernel might choose somebody else's process.
"""

import asyncio
import contextlib
import os
import signal
from pathlib import Path

from everstep.agent.workers import Worker
from everstep.probes.oom import memory_cgroup
from everstep.worker.runtime import DRILL_SIGNAL

REACTION_S = 10.0
"""A rank hears a drill when its main thread is in Python. Longer than any usual step."""

_OOM_LIMIT_BYTES = 192 << 20
_IN_WORKER = ("exit", "raise", "oom", "python-loop", "native-call")
_HANGS = ("python-loop", "native-call")


class DrillRefused(Exception):  # noqa: N818 - an answer
    """The message says why the drill cannot be done."""


async def inject(kind: str, worker: Worker | None) -> None:
    """Cause the fault. Raises DrillRefused."""
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
        await _ask(kind, worker)
    finally:
        if folder is not None:
            with contextlib.suppress(OSError):
                folder.rmdir()


async def _ask(kind: str, worker: Worker) -> None:
    """Put the request on the link, ring, and see that the rank ends."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + REACTION_S
    while worker.is_alive and not worker.has_entered and loop.time() < deadline:
        await asyncio.sleep(0.02)
    if not worker.has_entered:
        raise DrillRefused("the rank has not entered its program")
    if worker.channel is None or not worker.channel.send({"do": "drill", "kind": kind}):
        raise DrillRefused("the rank's link is closed: there is no runtime of ours in this program")
    worker.send_signal(DRILL_SIGNAL)
    if kind in _HANGS:
        return  # it lives on; whether it hangs is for everybody else to find out
    while worker.is_alive:
        if loop.time() > deadline:
            raise DrillRefused(
                f"the rank was still alive after {REACTION_S:.0f} s: it sits in native code, or its program caught it"
            )
        await asyncio.sleep(0.02)


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
