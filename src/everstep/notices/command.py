"""One notice to a program: JSON on its stdin. It has `limit_s`; then it is killed with all that it started, also with
what has left its session. Raises NoticeError.

A command marks what it starts by a variable of its environment, and what its parents leave becomes a child of this
process (`adopt_orphans`): so nothing of it is taken for a rank's by the launcher, and nothing is there after the run.
"""

import asyncio
import contextlib
import os
import secrets
import signal
import time

from everstep.linux import proc
from everstep.linux.parent import adopt_orphans
from everstep.notices.errors import NoticeError
from everstep.notices.settings import Receiver
from everstep.probes.process import descendants

MARK = "EVERSTEP_NOTICE"
MOST = 4096
"""Processes of one command that one look finds; what it forks meanwhile the next one does."""

SWEEP_S = 2.0
_PAUSE_S = 0.01


_running: set[int] = set()
"""Commands whose end is awaited."""


async def run_command(receiver: Receiver, data: bytes) -> None:
    adopt_orphans()
    mark, others = secrets.token_hex(8), set(proc.children(os.getpid()))
    try:
        process = await asyncio.create_subprocess_exec(
            *receiver.argv,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
            env={**os.environ, MARK: mark},
        )
    except (OSError, ValueError) as error:
        raise NoticeError(f"it cannot be started: {error}", is_final=True) from error
    _running.add(process.pid)
    try:
        async with asyncio.timeout(receiver.limit_s):
            await process.communicate(data)
    except TimeoutError as error:
        raise NoticeError(f"it did not end within {receiver.limit_s:g} s, and was killed") from error
    finally:
        await _sweep(process, mark, others)
        _running.discard(process.pid)
    if process.returncode:
        raise NoticeError(f"it ended with {process.returncode}")


async def _sweep(process: asyncio.subprocess.Process, mark: str, others: set[int]) -> None:
    """End it and whatever it left. What forks as fast as it is killed is left to the next one."""
    below = descendants(process.pid, MOST) if process.returncode is None else []  # while their parents name them
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    until = time.monotonic() + SWEEP_S
    while (left := [*below, *_left_of(mark)]) and time.monotonic() < until:
        _kill(left)
        below = []
        await asyncio.sleep(_PAUSE_S)
        _reap(others)
    with contextlib.suppress(ProcessLookupError):
        await process.wait()
    _reap(others)


def _left_of(mark: str) -> list[int]:
    """Processes of this command that became ours, and theirs."""
    wanted = f"{MARK}={mark}".encode()
    ours = [pid for pid in proc.children(os.getpid()) if wanted in proc.read_or_nothing(f"/proc/{pid}/environ")]
    return [each for pid in ours for each in (pid, *descendants(pid, MOST))]


def _reap(others: set[int]) -> None:
    """Reap what has ended and became ours since the command began: nothing else does."""
    for pid in set(proc.children(os.getpid())) - others - _running:
        found = proc.stat(pid)
        if found is not None and found.state == "Z":
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


def _kill(pids: list[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def end_children() -> None:
    """Kill all descendants of this process before it ends: whatever any command has left. Only for a process that has
    no others."""
    until = time.monotonic() + SWEEP_S
    while (pids := descendants(os.getpid(), MOST)) and time.monotonic() < until:
        _kill(pids)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(_PAUSE_S)
