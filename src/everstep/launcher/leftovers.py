"""Leftovers: processes that ranks left running when all of them had ended well, such as an upload in the background or
a server.

torchrun leaves them alone, so does everstep, and reports what they are; --leftovers decides otherwise. What a failed or
stopped generation leaves is always ended: nothing old may write beside a new one. Called by `launcher.supervise`.
"""

import asyncio
import time
from collections.abc import Callable

from everstep.engines.children import Children
from everstep.linux import proc
from everstep.probes.tracker import is_tracker

LEAVE, WAIT, KILL = "leave", "wait", "kill"
CHOICES = (LEAVE, WAIT, KILL)
WAIT_S = 60.0
_LOOK_S = 0.1
_MOMENT_S = 0.3
"""Children that end within this time were ending anyway: they are not reported."""


async def look_after(children: Children, how: str, say: Callable[[str], None], is_hurried: asyncio.Event) -> None:
    """Returns when nothing is left, or what is left may continue."""
    if how == KILL:
        for pid in _left(children):
            say(f"left running by a rank: {describe(pid)}: killed (--leftovers kill)")
        await children.end_orphans()
        return
    await _until_gone(children, _MOMENT_S, is_hurried)
    if how == WAIT and (left := _left(children)):
        for pid in left:
            say(f"left running by a rank: {describe(pid)}: waiting for it, at most {WAIT_S:g} s (--leftovers wait)")
        await _until_gone(children, WAIT_S, is_hurried)
    for pid in _left(children):
        say(f"left running by a rank: {describe(pid)}: it continues, as with torchrun (--leftovers wait, kill)")


async def _until_gone(children: Children, limit_s: float, is_hurried: asyncio.Event) -> None:
    deadline = time.monotonic() + limit_s
    while _left(children) and time.monotonic() < deadline and not is_hurried.is_set():
        await asyncio.sleep(_LOOK_S if limit_s > 1 else _LOOK_S / 10)
        children.reap()


def _left(children: Children) -> list[int]:
    return [pid for pid in children.orphans() if not is_tracker(pid) and _is_alive(pid)]


def _is_alive(pid: int) -> bool:
    found = proc.stat(pid)
    return found is not None and found.state not in "ZX"


def describe(pid: int) -> str:
    """Its number, command and age."""
    try:
        words = proc.read(f"/proc/{pid}/cmdline").split(b"\0")
        up_s = float(proc.read("/proc/uptime").split()[0])
    except (OSError, ValueError, IndexError):
        return f"process {pid}"
    found = proc.stat(pid)
    if found is None:
        return f"process {pid}"
    command = b" ".join(words).decode(errors="replace").strip() or found.name
    shown = "".join(c if c.isprintable() else "?" for c in command)[:80]
    return f"process {pid} ({shown}), {max(up_s - found.began / proc.TICKS_PER_S, 0):.0f} s old"
