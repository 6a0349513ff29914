"""A command that a benchmark started, and every process below it: find them, pause them, end them all.

Launchers put their workers into sessions of their own, so a process group is not enough. The benchmark
makes itself a child subreaper: whatever is orphaned becomes its child, hence every process it caused is
always below it in /proc. If the benchmark itself is killed, the launcher gets SIGTERM (PR_SET_PDEATHSIG)
and ends its own workers. Called by recovery.py, kills.py and overhead.py. Must not end anything that is not
below the calling process.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)


def adopt_orphans() -> None:
    """Make this process the parent of all below it that lose theirs. Call once, before starting anything."""
    if _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")


def end_on_sigterm() -> None:
    """SIGTERM unwinds like Ctrl-C does, so that `with launched(...)` ends what it started."""

    def leave(signum: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + signum)

    signal.signal(signal.SIGTERM, leave)


def _die_with_parent() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


class Launched:
    """A running command in its own session, with its output in a file. Made by `launched`."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        output: Path,
        stdout: Path | None = None,
        stdin: Path = Path(os.devnull),
        cwd: Path | None = None,
    ) -> None:
        self.command = tuple(command)
        self.output = output
        with output.open("ab") as stream, (stdout or output).open("ab") as out, stdin.open("rb") as given:
            self._process = subprocess.Popen(
                command,
                env=dict(env),
                cwd=cwd,
                stdin=given,
                stdout=out,
                stderr=stream,
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )
        self.pid = self._process.pid

    def exit_code(self) -> int | None:
        """None while it runs; negative: the signal that ended it."""
        return self._process.poll()

    def wait(self, timeout_s: float) -> int | None:
        """Its exit code, or None when it still runs after `timeout_s`."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(timeout_s)
        return None

    def pids(self) -> list[int]:
        """It and its living descendants, parents first. Orphans are not among them any more."""
        return [] if self.exit_code() is not None else [self.pid, *descendants(self.pid)]

    def pause(self) -> None:
        """Stop all of it, parents first so that no parent sees a stopped child and reacts."""
        for pid in self.pids():
            _send(pid, signal.SIGSTOP)

    def resume(self) -> None:
        for pid in reversed(self.pids()):
            _send(pid, signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL the launcher alone; what is below it becomes an orphan, hence ours."""
        self._process.kill()
        self._process.wait()

    def last_output(self, max_bytes: int = 2000) -> str:
        data = self.output.read_bytes() if self.output.exists() else b""
        return data[-max_bytes:].decode(errors="replace")


_live: list[Launched] = []


@contextlib.contextmanager
def launched(
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    output: Path,
    stdout: Path | None = None,
    stdin: Path = Path(os.devnull),
    cwd: Path | None = None,
) -> Iterator[Launched]:
    """Run a command for the length of the block, then SIGKILL all that it caused. Several may run at once. `output` has
    both streams, or with `stdout` only the errors."""
    running = Launched(command, env=env, output=output, stdout=stdout, stdin=stdin, cwd=cwd)
    _live.append(running)
    try:
        yield running
    finally:
        _live.remove(running)
        running.kill()
        _end_all_but(_live)


def _end_all_but(live: Sequence[Launched]) -> None:
    """SIGKILL and reap every process below this one that is not part of a live launcher: orphans are, too."""
    deadline = time.monotonic() + 20
    while True:
        spared = {pid for other in live for pid in other.pids()}
        doomed = [pid for pid in descendants(os.getpid()) if pid not in spared]
        if not doomed:
            return
        for pid in doomed:
            _send(pid, signal.SIGKILL)
            _reap(pid)
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes {doomed} do not end after SIGKILL")
        time.sleep(0.01)


def left_behind(grace_s: float = 2.0) -> list[int]:
    """What still runs below this process although every launcher has ended; those on their way out get `grace_s`."""
    deadline = time.monotonic() + grace_s
    while True:
        for pid in descendants(os.getpid()):
            _reap(pid)
        found = descendants(os.getpid())
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.02)


def descendants(root: int) -> list[int]:
    """Pids below `root`, zombies included, parents before children."""
    children = defaultdict(list)
    for pid, parent in _parents():
        children[parent].append(pid)
    found: list[int] = []
    queue = [root]
    while queue:
        queue = [child for pid in queue for child in children[pid]]
        found += queue
    return found


def cpu_s(pid: int) -> float:
    """User and system CPU seconds so far of one process; 0.0 once it is gone."""
    with contextlib.suppress(OSError):
        stat = Path(f"/proc/{pid}/stat").read_text()
        fields = stat[stat.rindex(")") + 2 :].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return 0.0


def _parents() -> Iterator[tuple[int, int]]:
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            stat = (entry / "stat").read_text()
            # The command name is in parentheses and may hold anything, so cut after the last: state, ppid.
            yield int(entry.name), int(stat[stat.rindex(")") + 2 :].split()[1])


def _send(pid: int, signum: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signum)


def _reap(pid: int) -> None:
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
