"""Where a rank's three streams go: descriptors 0, 1 and 2 of its process, opened by the agent.

stdin is the launcher's own, shared by all ranks as under torchrun: the first reader gets it. stdout and stderr are
files in memory, so that neither a slow, paused or dead reader nor a full disk holds up training; the spool copies them
to the log files. Where the launcher's stream is a terminal, the rank's is a pseudo-terminal, which the agent's pump
drains into the same memory (docs/adr/0017-streams.md, 0028-spool.md).

To start a rank:

    with streams.open_streams(origin, spec, paths, local_rank=0, spool=spool) as fds:
        spawn.spawn_worker(env, python, fds)            # a fresh process: dup2 to 0, 1 and 2 before it begins, or
        channel.send({..., "streams": True}, (*fds, ...))   # a process that is there: dup2 when its assignment comes

The descriptors close on exec, and in the agent with the `with`; `spawn_worker` duplicates them without that flag.
"""

import contextlib
import fcntl
import os
import stat
import termios
from collections.abc import Iterator
from pathlib import Path

import msgspec

from everstep.agent.streams.paths import Paths
from everstep.agent.streams.pump import Pump
from everstep.agent.streams.spool import Spool
from everstep.model.spec import STDERR, STDOUT, RunSpec, standard_streams

Fds = tuple[int, int, int]


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """The launcher's own streams, as far as ranks share them. -1: there is none."""

    stdin: int = -1
    stdout: int = -1  # the terminal that it is
    stderr: int = -1
    is_one: bool = False  # stdout and stderr are the same file, pipe or terminal: so are a rank's

    @classmethod
    def inherited(cls, text: str) -> "Origin":
        """From the launcher's argument: numbers of descriptors that came with the process. They go no further."""
        stdin, stdout, stderr, is_one = (int(word) for word in text.split(","))
        for fd in (stdin, stdout, stderr):
            if fd >= 0:
                os.set_inheritable(fd, False)
        return cls(stdin=stdin, stdout=stdout, stderr=stderr, is_one=bool(is_one))

    @property
    def fds(self) -> tuple[int, ...]:
        return tuple(fd for fd in (self.stdin, self.stdout, self.stderr) if fd >= 0)

    def argument(self) -> str:
        """For `inherited`, in a process that gets `fds`."""
        return f"{self.stdin},{self.stdout},{self.stderr},{int(self.is_one)}"


def of_this_process() -> Origin:
    """This process's own streams, as descriptors that can be passed on; called in the launcher."""
    stdout, stderr = (_copy(fd) if _is_terminal(fd) else -1 for fd in (1, 2))
    return Origin(stdin=_copy(0), stdout=stdout, stderr=stderr, is_one=_is_same(1, 2))


def _copy(fd: int) -> int:
    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
    except OSError:
        return -1


@contextlib.contextmanager
def open_streams(origin: Origin, spec: RunSpec, paths: Paths, *, local_rank: int, spool: Spool) -> Iterator[Fds]:
    """Descriptors for 0, 1 and 2 of this rank. Raises OSError."""
    with contextlib.ExitStack() as stack:

        def keep(fd: int) -> int:
            stack.callback(os.close, fd)
            return fd

        stdin = os.dup(origin.stdin) if origin.stdin >= 0 else os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        keep(stdin)
        kept = kept_streams(spec, local_rank)
        is_shown = spec.shown_local_ranks is None or local_rank in spec.shown_local_ranks
        stdout = _open_one(origin.stdout, paths.stdout, spool, is_live=is_shown and not kept & STDOUT)
        keep(stdout)
        if paths.is_one:
            stderr = os.dup(stdout)
        else:
            stderr = _open_one(origin.stderr, paths.stderr, spool, is_live=is_shown and not kept & STDERR)
        keep(stderr)
        yield stdin, stdout, stderr


def is_one_file(spec: RunSpec, local_rank: int, *, is_one: bool) -> bool:
    """Whether stdout and stderr of this rank are one file, because the launcher's are and none of them is asked for by
    itself: only then the order of what is written to the two stays as it was."""
    return is_one and not kept_streams(spec, local_rank)


def kept_streams(spec: RunSpec, local_rank: int) -> int:
    """Bits of the streams that the user wants as files, by -r or -t."""
    return standard_streams(spec.redirects, local_rank) | standard_streams(spec.tee, local_rank)


def _open_one(terminal: int, path: Path, spool: Spool, *, is_live: bool) -> int:
    target = spool.open(path)
    if terminal < 0 or not is_live:
        return target
    try:
        return _open_terminal(terminal, target, spool.terminals)
    except (OSError, termios.error):
        return target  # no pseudo-terminal is left: a file costs colours, not the rank


def _open_terminal(terminal: int, target: int, pump: Pump) -> int:
    """The rank's side of a pseudo-terminal like `terminal`. It never becomes a controlling terminal, as the launcher's
    does not under torchrun: a rank leads a session of its own."""
    ours, theirs = os.openpty()
    try:
        settings = termios.tcgetattr(terminal)
        settings[1] &= ~termios.OPOST  # bytes as the rank wrote them; the real terminal makes its line ends itself
        termios.tcsetattr(theirs, termios.TCSANOW, settings)
        pump.follow(ours, target, like=terminal)
    except BaseException:
        os.close(ours)
        os.close(theirs)
        raise
    return theirs


def _is_terminal(fd: int) -> bool:
    try:
        return os.isatty(fd)
    except OSError:
        return False


def _is_same(one: int, other: int) -> bool:
    """Return whether both are the same pipe, file or terminal. /dev/null and other devices without a memory have no
    order to keep, and never count as the same."""
    try:
        a, b = os.fstat(one), os.fstat(other)
    except OSError:
        return False
    if stat.S_ISCHR(a.st_mode) and not os.isatty(one):
        return False
    return (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino)
