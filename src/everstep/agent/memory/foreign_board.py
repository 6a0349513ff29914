"""The progress board of another process's agent, read-only: which process a rank is, and how far it is.

The board has no name in the file system; it is found among the descriptors of the agent, by users allowed to inspect
them: the run's user, or root.
"""

import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager

from everstep.linux import proc
from everstep.worker.process.board import LINE_BYTES, FloatCell, IntCell

_NAME = "/memfd:everstep-board"
_MAX_BYTES = 1 << 20
_MAX_ABOVE = 64


class RankLine:
    """One rank's line. Ranks write it, so anything may be in it."""

    def __init__(self, memory: mmap.mmap, number: int) -> None:
        self.number = number
        base = number * LINE_BYTES
        whole = memoryview(memory)[base : base + LINE_BYTES]
        self._ints, self._floats = whole.cast("q"), whole.cast("d")

    @property
    def rank(self) -> int:
        return self._ints[IntCell.RANK]

    @property
    def generation(self) -> int:
        return self._ints[IntCell.GENERATION]

    @property
    def pid(self) -> int:
        return self._ints[IntCell.PID]

    def step(self) -> tuple[int, float]:
        """The last completed step and when it was (NaN: not yet). The time is written before the step."""
        step = self._ints[IntCell.LAST_STEP]
        return step, self._floats[FloatCell.LAST_STEP_AT]

    def close(self) -> None:
        self._ints.release()
        self._floats.release()


@contextmanager
def find_line(agent_pid: int, rank: int) -> Iterator[RankLine | None]:
    """The line of a rank that lives on this agent's node; None: there is none. Ranks say themselves which one they are
    and as which process: a line counts if that process comes from the agent. Raises OSError: the agent is gone, or is
    another user's."""
    with _lines(agent_pid) as lines:
        mine = [line for line in lines if line.rank == rank and line.generation >= 0 and line.pid > 0]
        mine = [line for line in mine if is_below(line.pid, agent_pid)]
        yield max(mine, key=lambda line: line.generation, default=None)


@contextmanager
def line_at(agent_pid: int, number: int, pid: int) -> Iterator[RankLine | None]:
    """The line of this number, for the agent, which knows whose it is; None: it names a process that neither is this
    one nor comes from it. Raises OSError."""
    with _lines(agent_pid) as lines:
        mine = [line for line in lines if line.number == number and (line.pid == pid or is_below(line.pid, pid))]
        yield mine[0] if mine else None


@contextmanager
def _lines(agent_pid: int) -> Iterator[list[RankLine]]:
    with _boards(agent_pid) as boards:
        lines = [RankLine(board, number) for board in boards for number in range(len(board) // LINE_BYTES)]
        try:
            yield lines
        finally:
            for line in lines:
                line.close()


def is_below(pid: int, ancestor: int) -> bool:
    """Whether a process comes from this one, and is the same user's."""
    try:
        is_theirs = os.stat(f"/proc/{pid}").st_uid == os.stat(f"/proc/{ancestor}").st_uid  # noqa: PTH116
    except OSError:
        return False
    found = proc.stat(pid)
    for _ in range(_MAX_ABOVE):
        if found is None or not found.parent:
            return False
        if found.parent == ancestor:
            return is_theirs
        found = proc.stat(found.parent)
    return False


@contextmanager
def _boards(pid: int) -> Iterator[list[mmap.mmap]]:
    folder = f"/proc/{pid}/fd"
    boards = []
    for name in os.listdir(folder):  # noqa: PTH208 - names only
        try:
            if not os.readlink(f"{folder}/{name}").startswith(_NAME):  # noqa: PTH115
                continue
            fd = os.open(f"{folder}/{name}", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue  # closed meanwhile
        try:
            size = os.fstat(fd).st_size
            if LINE_BYTES <= size <= _MAX_BYTES:
                boards.append(mmap.mmap(fd, size, prot=mmap.PROT_READ))
        finally:
            os.close(fd)
    try:
        yield boards
    finally:
        for board in boards:
            board.close()
