"""The agent's side of the progress board: makes the memory, resets lines, reads accounts.

Layout and the worker's side are in `worker/process/board.py`. Reading never waits: the values are as old as the
worker's last store, which also holds for a worker that was killed.

Ranks write here, so anything may be in it. The agent knows itself which rank owns a line and when that process was
started. A time in the future, a negative count, NaN: unknown.
"""

import fcntl
import math
import mmap
import os
import time

from everstep.model.facts import RankAccount, RankNote
from everstep.worker.process.board import LINE_BYTES, NAN, UNKNOWN, WHY, Activity, FloatCell, IntCell, Phase

_CLOCK_S = 5.0
"""A clock that is set back by more makes the times that were written before unknown."""


class Board:
    """One memfd for all local ranks of this agent."""

    def __init__(self, num_lines: int) -> None:
        self.fd = os.memfd_create("everstep-board", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.fd, num_lines * LINE_BYTES)
        # A rank that cuts it would end the agent with SIGBUS.
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        self._map = mmap.mmap(self.fd, num_lines * LINE_BYTES)
        self._ints = memoryview(self._map).cast("q")
        self._floats = memoryview(self._map).cast("d")
        self.num_lines = num_lines
        self._ranks = [UNKNOWN] * num_lines
        self._spawned_at = [0.0] * num_lines

    def reset(self, line: int, *, rank: int, generation: int, spawned_at: float | None = None) -> None:
        """Make the line ready for a new worker. Only while no worker has it."""
        base = line * LINE_BYTES // 8
        for cell in IntCell:
            self._ints[base + cell] = UNKNOWN
        for moment in FloatCell:
            self._floats[base + moment] = NAN
        for cell in (IntCell.NUM_FAULTS, IntCell.COUNTS_OWN_STEPS, IntCell.PHASE, IntCell.ACTIVITY):
            self._ints[base + cell] = 0
        for seconds in (FloatCell.RESTORE_S, FloatCell.STALL_S):
            self._floats[base + seconds] = 0.0
        self._ints[base + IntCell.RANK] = rank
        self._ints[base + IntCell.GENERATION] = generation
        self._ranks[line] = rank
        self._spawned_at[line] = time.time() if spawned_at is None else spawned_at
        self._floats[base + FloatCell.SPAWNED_AT] = self._spawned_at[line]

    def set_entered(self, line: int) -> None:
        """The program runs. Before the worker writes anything itself."""
        base = line * LINE_BYTES // 8
        self._floats[base + FloatCell.ENTERED_AT] = time.time()
        self._ints[base + IntCell.PHASE] = Phase.ENTERED

    def account(self, line: int, *, ended_at: float | None = None) -> RankAccount:
        """Return the rank's account as its line has it now."""
        return RankAccount(
            rank=self._ranks[line],
            spawned_at=self._spawned_at[line],
            entered_at=self._time(line, FloatCell.ENTERED_AT),
            rendezvous_begun_at=self._time(line, FloatCell.RENDEZVOUS_BEGUN_AT),
            rendezvous_done_at=self._time(line, FloatCell.RENDEZVOUS_DONE_AT),
            restore_s=self._seconds(line, FloatCell.RESTORE_S) or 0.0,
            loop_at=self._time(line, FloatCell.LOOP_AT),
            first_step=self._int(line, IntCell.FIRST_STEP),
            last_step=self._int(line, IntCell.LAST_STEP),
            first_step_at=self._time(line, FloatCell.FIRST_STEP_AT),
            last_step_at=self._time(line, FloatCell.LAST_STEP_AT),
            stall_s=self._seconds(line, FloatCell.STALL_S) or 0.0,
            published_step=self._int(line, IntCell.PUBLISHED_STEP),
            ended_at=ended_at,
            counts_own_steps=self._int(line, IntCell.COUNTS_OWN_STEPS) == 1,
            communicated_at=self._time(line, FloatCell.COMM_MOVED_AT),
            finished_at=self.over_at(line) if self._int(line, IntCell.FINISHED) == 1 else None,
        )

    def note(self, line: int) -> RankNote | None:
        """Return the rank's own reason for making no progress; None if it gives none."""
        busy_at = self._time(line, FloatCell.BUSY_AT)
        if self.activity(line) == Activity.BUSY and busy_at is not None:
            return RankNote(kind="busy", says=self._why(line), since=busy_at)
        over_at = self.over_at(line)
        return None if over_at is None else RankNote(kind="ending", since=over_at)

    def over_at(self, line: int) -> float | None:
        """When the program's last line was over."""
        return self._time(line, FloatCell.OVER_AT)

    def is_busy(self, line: int, now: float) -> bool:
        """It says so, and for no longer than it meant to be."""
        until = self._floats[line * LINE_BYTES // 8 + FloatCell.BUSY_UNTIL]
        return self.activity(line) == Activity.BUSY and not now > until

    def phase(self, line: int) -> int:
        return self._ints[line * LINE_BYTES // 8 + IntCell.PHASE]

    def communication(self, line: int) -> tuple[float | None, float | None]:
        """When the groups' sequence numbers last moved, and when they were last read."""
        return self._time(line, FloatCell.COMM_MOVED_AT), self._time(line, FloatCell.COMM_LOOKED_AT)

    def activity(self, line: int) -> int:
        """Return what the rank is doing, as the program or a hook reports it: `worker.process.board.Activity`."""
        return self._ints[line * LINE_BYTES // 8 + IntCell.ACTIVITY]

    def is_collecting(self, line: int) -> bool:
        """Whether Python's garbage collector is in a full collection."""
        return self._ints[line * LINE_BYTES // 8 + IntCell.COLLECTING] == 1

    def durations(self, line: int) -> tuple[float | None, float | None]:
        """How long the last evaluation and the last save took."""
        return self._seconds(line, FloatCell.EVALUATION_S), self._seconds(line, FloatCell.CHECKPOINT_S)

    def loads(self, line: int) -> tuple[float | None, float | None, float | None]:
        """Seconds waited for data, seconds in the garbage collector, work done; cumulative, None is not measured."""
        return (
            self._seconds(line, FloatCell.DATA_S),
            self._seconds(line, FloatCell.GC_S),
            self._seconds(line, FloatCell.WORK),
        )

    def num_faults(self, line: int) -> int:
        return self._ints[line * LINE_BYTES // 8 + IntCell.NUM_FAULTS]

    def close(self) -> None:
        self._ints.release()
        self._floats.release()
        self._map.close()
        os.close(self.fd)

    def _why(self, line: int) -> str:
        """Whatever a rank wrote there, as text that can be shown."""
        length = min(max(0, self._ints[line * LINE_BYTES // 8 + IntCell.WHY_BYTES]), WHY.stop - WHY.start)
        begin = line * LINE_BYTES + WHY.start
        text = self._map[begin : begin + length].decode("utf-8", "replace")
        return "".join(each if each.isprintable() else " " for each in text).strip()

    def _int(self, line: int, cell: IntCell) -> int | None:
        value = self._ints[line * LINE_BYTES // 8 + cell]
        return value if value >= 0 else None

    def _seconds(self, line: int, cell: FloatCell) -> float | None:
        """Or work: what only grows."""
        value = self._floats[line * LINE_BYTES // 8 + cell]
        return value if value >= 0 and math.isfinite(value) else None

    def _time(self, line: int, cell: FloatCell) -> float | None:
        """Not in the future."""
        value = self._floats[line * LINE_BYTES // 8 + cell]
        return value if 0 <= value <= time.time() + _CLOCK_S else None
