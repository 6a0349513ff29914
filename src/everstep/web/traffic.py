"""The traffic of a run's network: what `everstep fabric traffic --json` prints, computed by a process of its own.

Arrays of ten thousand links and files of many nodes are too much for the process that supervises the job. It is run
seldom, and with the lowest priority: training goes first.
"""

import asyncio
import contextlib
import os
import sys
import time
from pathlib import Path

from everstep.errors import ConfigError

MOST_LINKS = 64
LIMIT_S = 60.0
KEPT_S = 10.0
"""How long an answer is kept at least: agents report collectives no more often."""
REST = 30.0
"""How many times as long as an answer took it is kept: three percent of a CPU while a page is open."""
_MOST_BYTES = 32 << 20
_LOWEST = 19


class Traffic:
    """One process at a time, for all clients."""

    def __init__(self, kept_s: float = KEPT_S) -> None:
        self._lock = asyncio.Lock()
        self._kept_s = kept_s
        self._kept: tuple[Path, float, bytes | ConfigError] | None = None  # of which run, until when, what

    async def read(self, run_dir: Path) -> bytes:
        """The traffic as JSON. Raises ConfigError: what is not known, or cannot be read."""
        async with self._lock:
            if self._kept is None or self._kept[0] != run_dir or time.monotonic() > self._kept[1]:
                began = time.monotonic()
                answer = await _ask(run_dir)
                until = time.monotonic() + max(self._kept_s, REST * (time.monotonic() - began))
                self._kept = run_dir, until, answer
            answer = self._kept[2]
        if isinstance(answer, ConfigError):
            raise answer
        return answer


async def _ask(run_dir: Path) -> bytes | ConfigError:
    what = (
        "fabric",
        "traffic",
        "--runs",
        str(run_dir),
        "--beside",
        "--json",
        "--most",
        str(MOST_LINKS),
        "--parent",
        str(os.getpid()),
    )
    pipe = asyncio.subprocess.PIPE
    try:
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", "everstep", *what,
            stdin=asyncio.subprocess.DEVNULL, stdout=pipe, stderr=pipe, start_new_session=True, limit=_MOST_BYTES,
        )  # fmt: skip
    except OSError as error:
        return ConfigError(f"the traffic cannot be read: no process for it: {error.strerror}")
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, child.pid, _LOWEST)
    try:
        async with asyncio.timeout(LIMIT_S):
            told, said = await child.communicate()
    except TimeoutError:
        return ConfigError(
            f"the traffic was not read within {LIMIT_S:g} s: the machine is busy, or its files are large"
        )
    finally:
        with contextlib.suppress(ProcessLookupError):
            child.kill()
        await child.wait()
    if child.returncode == 0 and len(told) <= _MOST_BYTES:
        return told
    lines = said.decode(errors="replace").strip().splitlines()
    why = lines[-1].removeprefix("everstep: ") if lines else f"the process for it ended with {child.returncode}"
    return ConfigError(why)
