"""Runs checks in a child process with a time limit each: a check that hangs is killed, named, and the others go on.

Called by `everstep check`. Starts one process at a time in a session of its own, and leaves none behind, however it
ends.
"""

import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import IO

import msgspec

from everstep.preflight.registry import BY_NAME, Check
from everstep.preflight.result import Judgement, Result
from everstep.preflight.running.spoken import Begun, Busy, Ended, Found, Line, Request
from everstep.preflight.settings import Settings

_TICK_S = 0.2  # how often progress is reported while a check is silent
_TAIL_BYTES = 2000


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a running check, for people."""

    check: Check
    done: int
    total: int
    elapsed_s: float  # of this check
    doing: str = ""
    ended: bool = False
    num_results: int = 0


OnProgress = Callable[[Progress], None]


def run_checks(names: Sequence[str], settings: Settings, on_progress: OnProgress) -> Iterator[Result]:
    """Results as they come. A check without its end leaves a result that says so."""
    left = list(names)
    while left:
        with _child(settings, left) as child:
            watch = _Watch(child, settings, total=len(names), done=len(names) - len(left))
            yield from watch.results(on_progress)
            if not watch.ended:  # it never began the first check: do not try for ever
                yield _broken(BY_NAME[left[0]], watch)
                watch.ended.append(left[0])
            left = [name for name in left if name not in watch.ended]


class _Child(msgspec.Struct):
    process: "subprocess.Popen[bytes]"
    errors: IO[bytes]

    def tail(self) -> str:
        """The last lines of its standard error."""
        self.errors.seek(max(0, self.errors.seek(0, os.SEEK_END) - _TAIL_BYTES))
        lines = self.errors.read().decode(errors="replace").strip().splitlines()
        return " | ".join(lines[-3:])


@contextmanager
def _child(settings: Settings, names: Sequence[str]) -> Iterator[_Child]:
    request = Request(settings=settings, checks=tuple(names), parent=os.getpid())
    command = [sys.executable, "-P", "-m", "everstep.preflight.running.child"]
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, start_new_session=True
        )
        try:
            _ask(process, request)
            yield _Child(process, errors)
        finally:
            _end(process)


def _ask(process: "subprocess.Popen[bytes]", request: Request) -> None:
    assert process.stdin is not None
    try:
        process.stdin.write(msgspec.json.encode(request) + b"\n")
        process.stdin.close()
    except BrokenPipeError:
        pass  # it died at once: told by the end of its output


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Kills its whole session, whether or not the process itself has ended, and waits for it."""
    try:
        os.killpg(process.pid, signal.SIGKILL)  # before wait(): until then the number cannot be given to others
    except ProcessLookupError:
        pass
    if process.stdout is not None:
        process.stdout.close()
    if process.stdin is not None and not process.stdin.closed:
        process.stdin.close()
    try:
        # A process in uninterruptible sleep (dead disk, dead NFS server) cannot be waited for.
        process.wait(timeout=5.0)
    except subprocess.TimeoutExpired:
        process.returncode = -int(signal.SIGKILL)


class _Watch:
    """Reads one child until it ends or a check is over its limit."""

    def __init__(self, child: _Child, settings: Settings, *, total: int, done: int) -> None:
        self.ended: list[str] = []
        self._child = child
        self._settings = settings
        self._total = total
        self._done = done
        self._check: Check | None = None
        self._begun = time.monotonic()
        self._doing = ""
        self._num_results = 0

    def results(self, on_progress: OnProgress) -> Iterator[Result]:
        buffer = b""
        stdout = self._child.process.stdout
        assert stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(stdout, selectors.EVENT_READ)
            while True:
                if selector.select(_TICK_S):
                    chunk = os.read(stdout.fileno(), 65536)
                    if not chunk:
                        break
                    *lines, buffer = (buffer + chunk).split(b"\n")
                    for line in lines:
                        yield from self._hear(msgspec.json.decode(line, type=Line), on_progress)
                self._tell(on_progress)
                if self._check is not None and self._elapsed_s > self._check.limit_s(self._settings):
                    yield self._give_up(_hung(self._check, self._settings, self._doing))
                    return
        if self._check is not None:
            yield self._give_up(_broken(self._check, self))

    @property
    def _elapsed_s(self) -> float:
        return time.monotonic() - self._begun

    def _hear(self, line: Line, on_progress: OnProgress) -> Iterator[Result]:
        match line:
            case Begun(check=name):
                self._check, self._begun, self._doing, self._num_results = BY_NAME[name], time.monotonic(), "", 0
            case Busy(what=what):
                self._doing = what
            case Found(result=result):
                self._num_results += 1
                yield result
            case Ended(check=name, took_s=took_s, error=error):
                check = BY_NAME[name]
                if error:
                    yield _failed(check, error)
                on_progress(self._progress(check, took_s, ended=True))
                self.ended.append(name)
                self._check = None

    def _tell(self, on_progress: OnProgress) -> None:
        if self._check is not None:
            on_progress(self._progress(self._check, self._elapsed_s, ended=False))

    def _progress(self, check: Check, elapsed_s: float, *, ended: bool) -> Progress:
        return Progress(
            check=check,
            done=self._done + len(self.ended),
            total=self._total,
            elapsed_s=elapsed_s,
            doing=self._doing,
            ended=ended,
            num_results=self._num_results,
        )

    def _give_up(self, result: Result) -> Result:
        assert self._check is not None
        self.ended.append(self._check.name)
        self._check = None
        return result

    def how_it_ended(self) -> str:
        _end(self._child.process)
        code = self._child.process.returncode
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        tail = self._child.tail()
        return f"{how}; it said: {tail}" if tail else how


def _hung(check: Check, settings: Settings, doing: str) -> Result:
    during = f" during {doing}" if doing else ""
    why = f"did not end within {check.limit_s(settings):g} s{during}; killed"
    return Result(name=f"{check.name}.check", value="hung", verdict=Judgement.BAD, why=why, how="time limit")


def _broken(check: Check, watch: _Watch) -> Result:
    """The process of the check died: by a signal, which healthy machines do not send, or it could not start."""
    why = f"the process of this check ended early: {watch.how_it_ended()}"
    return Result(name=f"{check.name}.check", value="died", verdict=Judgement.BAD, why=why, how="exit status")


def _failed(check: Check, error: str) -> Result:
    why = f"our check failed, which says nothing about the node: {error}"
    return Result(
        name=f"{check.name}.check", value=None, verdict=Judgement.UNSUPPORTED, why=why, how="exception in the check"
    )
