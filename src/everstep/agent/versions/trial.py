"""Whether a version of the program can start, tried in a process of its own: within a limit, at low priority unless it
is urgent, and ended with everything that it started. Used by `agent.node`; answers ValidateUpdate.
"""

import asyncio
import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from everstep.agent.processes import reaping
from everstep.agent.processes.reaping import Reaper
from everstep.agent.versions.placing import Placed, place
from everstep.journal.beside.variables import values_of
from everstep.linux.children import Ended
from everstep.model.actions import ValidateUpdate
from everstep.model.events import UpdateValidated
from everstep.model.spec import Launch, RunSpec

START_LIMIT_S = 60.0
"""A program that still runs then has started, as far as can be said without the other ranks."""

_ANSWER_FD = 3
_MAX_ANSWER_BYTES = 1 << 16
_BOOT = "import sys; sys.path[:1] = []; from everstep.agent.versions.trial_main import main; main()"


class Trials:
    """One at a time per version; asked again, it answers again."""

    def __init__(
        self,
        node: str,
        run_dir: Path,
        env: Mapping[str, str],
        reaper: Reaper,
        report: Callable[[UpdateValidated], None],
    ) -> None:
        self._node = node
        self._run_dir = run_dir
        self._folder = run_dir / "nodes" / node
        self._env = env
        self._reaper = reaper
        self._report = report
        self._answers: dict[str, UpdateValidated | None] = {}  # None: under way

    async def look(self, action: ValidateUpdate, spec: RunSpec) -> None:
        """Never raises: what goes wrong is the answer."""
        version = action.version.id
        if version in self._answers:
            answer = self._answers[version]
            if answer is not None:
                self._report(answer)
            return
        self._answers[version] = None
        began = time.monotonic()
        try:
            is_good, why = await self._ask(action, spec)
        except OSError as error:
            is_good, why = False, f"{self._node} cannot look at it: {error}"
        answer = UpdateValidated(
            at=time.time(),
            node=self._node,
            version=version,
            is_good=is_good,
            why=why,
            took_s=time.monotonic() - began,
        )
        self._answers[version] = answer
        self._report(answer)

    async def _ask(self, action: ValidateUpdate, spec: RunSpec) -> tuple[bool, str]:
        placed = place(spec, action.version, {**self._env, **values_of(self._run_dir, action.version)})
        if spec.launch is Launch.COMMAND:
            return True, "a command is not run by our interpreter: nothing was looked at"
        is_ours = placed.env.get("PYTHON_EXEC", sys.executable) == sys.executable
        can_start = action.can_start and is_ours  # of another interpreter only the code can be read
        read_fd, write_fd = os.pipe()
        try:
            pid = self._spawn(placed, spec, write_fd, can_start=can_start, is_urgent=action.version.is_urgent)
        finally:
            os.close(write_fd)
        try:
            limit_s = min(START_LIMIT_S, action.limit_s) if can_start else action.limit_s
            ended = await self._wait(pid, limit_s)
            return _understand(_read(read_fd), ended, limit_s, self._log_path)
        finally:
            os.close(read_fd)
            reaping.kill_group(pid)

    @property
    def _log_path(self) -> Path:
        return self._folder / "trial.log"

    def _spawn(self, placed: Placed, spec: RunSpec, answer: int, *, can_start: bool, is_urgent: bool) -> int:
        last = spec.world_size - 1
        ranks = {
            "RANK": last,
            "LOCAL_RANK": 0 if spec.virtual_local_rank else spec.nproc_per_node - 1,
            "WORLD_SIZE": spec.world_size,
            "LOCAL_WORLD_SIZE": spec.nproc_per_node,
            "GROUP_RANK": spec.num_slots - 1,
            "GROUP_WORLD_SIZE": spec.num_slots,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": 1,  # nothing listens there: the trial ends before it connects
            "EVERSTEP_AGENT_PID": os.getpid(),
            "EVERSTEP_TRIAL": 1,
        }
        env = {**placed.env, **{name: str(value) for name, value in ranks.items()}}
        job = {
            "launch": str(spec.launch),
            "program": placed.program,
            "args": placed.args,
            "cwd": spec.cwd or os.getcwd(),  # noqa: PTH109
            "moved": placed.moved,
            "can_start": can_start,
            "is_urgent": is_urgent,
            "answer_fd": _ANSWER_FD,
        }
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        actions: list[tuple[object, ...]] = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(self._log_path), flags, 0o644),
            (os.POSIX_SPAWN_DUP2, 1, 2),
            (os.POSIX_SPAWN_DUP2, answer, _ANSWER_FD),
        ]
        argv = [sys.executable, "-u", "-c", _BOOT, json.dumps(job)]
        return os.posix_spawn(sys.executable, argv, env, file_actions=actions, setsid=True, setsigmask=())

    async def _wait(self, pid: int, limit_s: float) -> Ended | None:
        """How it ended; None: it did not within the limit, and was killed."""
        over: asyncio.Future[Ended] = asyncio.get_running_loop().create_future()
        self._reaper.watch(pid, lambda ended: None if over.done() else over.set_result(ended))
        try:
            async with asyncio.timeout(limit_s):
                return await asyncio.shield(over)
        except TimeoutError:
            return None
        finally:
            if not over.done():
                reaping.kill_group(pid)


def _read(fd: int) -> bytes:
    os.set_blocking(fd, False)
    with contextlib.suppress(BlockingIOError):
        return os.read(fd, _MAX_ANSWER_BYTES)
    return b""


def _understand(answer: bytes, ended: Ended | None, limit_s: float, log: Path) -> tuple[bool, str]:
    try:
        said = json.loads(answer)
        return bool(said["is_good"]), str(said["why"])
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    if ended is None:
        return True, f"it was still starting after {limit_s:g} s, which is as far as it was watched"
    how = f"signal {ended.signal}" if ended.signal is not None else f"exit code {ended.code}"
    lines = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
    return False, f"its start ended with {how}" + (f": {lines[-1][:500]}" if lines else "")
