"""The progress board: one 512-byte line of shared memory per local rank, written by the worker, read by its
agent.

It answers "where is this rank?" without asking it: the agent reads a mapping (`agent/memory/board.py`), also after
the worker was killed at any instruction. It must not cost the training loop anything to speak of (a setter is
one aligned 8-byte store) and must not import anything beyond the standard library, because it lives in the
user's process.

One writer per line: the agent resets a line while no worker has it, afterwards only the worker writes. Cells
that belong together are written in the order in which a reader may see them: times first, then the step that
they time.
"""

import enum
import mmap
import os

LINE_BYTES = 512
WHY = slice(320, 512)
"""Bytes of a line with the text of `BoardLine.set_busy`."""

NAN = float("nan")
UNKNOWN = -1


class Phase(enum.IntEnum):
    """The phase that the rank reports."""

    NONE = 0  # no worker has this line
    STARTING = 1  # the process exists, the user's program has not begun
    ENTERED = 2  # the user's program runs
    RENDEZVOUS = 3  # in init_process_group
    RESTORING = 4
    STEPPING = 5
    ENDING = 6  # the user's program returned or raised
    FINISHING = 7  # its State's loop is over; what follows (a last save, an upload) may take long


class Activity(enum.IntEnum):
    """The rank's activity, where the program or a hook reports it. TRAIN: nothing special."""

    TRAIN = 0
    DATA = 1  # in a data loader's next
    OPTIMIZER = 2
    EVALUATION = 3
    CHECKPOINT = 4
    PAUSED = 5  # the program said that it waits on purpose: a debugger, a person, a lock
    BUSY = 6  # the program said that what it does may take long, and what that is


class IntCell(enum.IntEnum):
    """Cells with a signed integer. A number is the cell's place on the line and never changes."""

    RANK = 0
    GENERATION = 1
    PID = 2
    PHASE = 3
    NUM_FAULTS = 4
    FIRST_STEP = 5
    LAST_STEP = 6
    PUBLISHED_STEP = 7
    COUNTS_OWN_STEPS = 8
    COMM_SEQ = 9  # sum of the sequence numbers of all process groups
    ACTIVITY = 10  # what it does within a step, or instead of one
    COLLECTING = 11  # 1 while Python's garbage collector goes through everything
    WHY_BYTES = 12  # length of the text why it is busy
    FINISHED = 13  # 1: the program came to its last line, and no exception ended it


class FloatCell(enum.IntEnum):
    """Cells with a double, seconds."""

    SPAWNED_AT = 16
    ENTERED_AT = 17
    RENDEZVOUS_BEGUN_AT = 18
    RENDEZVOUS_DONE_AT = 19
    LOOP_AT = 20
    FIRST_STEP_AT = 21
    LAST_STEP_AT = 22
    RESTORE_S = 23
    STALL_S = 24
    COMM_MOVED_AT = 25  # when COMM_SEQ was last seen to change
    COMM_LOOKED_AT = 26  # when it was last looked at
    ACTIVITY_AT = 27  # since when it has this activity
    DATA_S = 28  # waited for data loaders, cumulative; NaN: not measured
    GC_S = 29  # in Python's garbage collector, cumulative
    WORK = 30  # elements of the batches that loaders gave, or what the program said; cumulative
    EVALUATION_S = 31  # how long the last complete evaluation took; NaN: there was none
    CHECKPOINT_S = 32  # the same for a save
    OVER_AT = 33  # the program's last line is over: exit handlers, threads and the interpreter's end follow
    BUSY_AT = 34  # since when it is busy
    BUSY_UNTIL = 35  # after that it is judged as if it were not; NaN: however long


# Plain ints: an enum member's attribute look-up would cost more than the store itself.
_FIRST_STEP, _LAST_STEP, _PUBLISHED = (
    int(IntCell.FIRST_STEP),
    int(IntCell.LAST_STEP),
    int(IntCell.PUBLISHED_STEP),
)
_LAST_STEP_AT, _STALL_S, _RESTORE_S = (
    int(FloatCell.LAST_STEP_AT),
    int(FloatCell.STALL_S),
    int(FloatCell.RESTORE_S),
)
_FIRST_STEP_AT, _LOOP_AT, _PHASE = int(FloatCell.FIRST_STEP_AT), int(FloatCell.LOOP_AT), int(IntCell.PHASE)
_ACTIVITY, _ACTIVITY_AT = int(IntCell.ACTIVITY), int(FloatCell.ACTIVITY_AT)
_DATA_S, _GC_S, _WORK = int(FloatCell.DATA_S), int(FloatCell.GC_S), int(FloatCell.WORK)

MARKS = {
    "entered": (int(FloatCell.ENTERED_AT), int(Phase.ENTERED)),
    "rendezvous_begun": (int(FloatCell.RENDEZVOUS_BEGUN_AT), int(Phase.RENDEZVOUS)),
    "rendezvous_done": (int(FloatCell.RENDEZVOUS_DONE_AT), int(Phase.ENTERED)),
    "first_step": (_FIRST_STEP_AT, int(Phase.STEPPING)),
}
"""Milestones with a doorbell: name -> (cell, phase that begins with it)."""


class BoardLine:
    """The worker's own line. Every method is a few stores; none raises on good arguments."""

    def __init__(self, fd: int, line: int) -> None:
        """Map line number `line` of the board behind `fd`; the descriptor may be closed afterwards."""
        size = os.fstat(fd).st_size
        self._map = mmap.mmap(fd, size)
        view = memoryview(self._map)[line * LINE_BYTES : (line + 1) * LINE_BYTES]
        self._ints = view.cast("q")
        self._floats = view.cast("d")
        self._why = view[WHY]

    def move(self, fd: int, line: int) -> None:
        """Move to another line: all holders of this object write there from now on."""
        self.__init__(fd, line)  # type: ignore[misc]

    @property
    def pid(self) -> int:
        return self._ints[IntCell.PID]

    @property
    def first_step(self) -> int | None:
        """Index of the first step done in this generation."""
        step = self._ints[_FIRST_STEP]
        return None if step == UNKNOWN else step

    @property
    def last_step(self) -> int | None:
        step = self._ints[_LAST_STEP]
        return None if step == UNKNOWN else step

    @property
    def counts_own_steps(self) -> bool:
        return bool(self._ints[IntCell.COUNTS_OWN_STEPS])

    def set_pid(self, pid: int) -> None:
        self._ints[IntCell.PID] = pid
        self._ints[_PHASE] = Phase.STARTING

    def set_phase(self, phase: int) -> None:
        self._ints[_PHASE] = phase

    def set_over(self, at: float, *, finished: bool) -> None:
        """The program's last line is over. `finished`: as far as is known, no exception ended it."""
        self._ints[IntCell.FINISHED] = int(finished)
        self._floats[FloatCell.OVER_AT] = at
        self._ints[_PHASE] = Phase.ENDING

    def set_busy(self, why: bytes, at: float, until: float) -> None:
        """Before the activity that it explains. No longer than the room for it."""
        self._ints[IntCell.WHY_BYTES] = 0
        self._why[: len(why)] = why
        self._ints[IntCell.WHY_BYTES] = len(why)
        self._floats[FloatCell.BUSY_UNTIL] = until
        self._floats[FloatCell.BUSY_AT] = at

    def set_mark(self, name: str, at: float) -> bool:
        """Set a milestone's time, once; False if it was set already."""
        cell, phase = MARKS[name]
        self._ints[_PHASE] = phase
        if self._floats[cell] == self._floats[cell]:  # not NaN
            return False
        self._floats[cell] = at
        return True

    def set_loop_at(self, at: float) -> None:
        """The first step begins. Set once; later calls change nothing."""
        if self._floats[_LOOP_AT] != self._floats[_LOOP_AT]:
            self._floats[_LOOP_AT] = at

    def step_done(self, step: int, at: float) -> bool:
        """Step `step` is done; True if it is the first one in this generation."""
        self._floats[_LAST_STEP_AT] = at
        first = self._ints[_FIRST_STEP] == UNKNOWN
        if first:
            if self._floats[_FIRST_STEP_AT] != self._floats[_FIRST_STEP_AT]:
                self._floats[_FIRST_STEP_AT] = at
            self._ints[_FIRST_STEP] = step
        self._ints[_LAST_STEP] = step
        return first

    def set_published_step(self, step: int) -> None:
        """The snapshot taken after `step` is complete."""
        self._ints[_PUBLISHED] = step

    def add_stall_s(self, seconds: float) -> None:
        """The training thread waited for a snapshot."""
        self._floats[_STALL_S] += seconds

    def add_restore_s(self, seconds: float) -> None:
        self._floats[_RESTORE_S] += seconds

    def set_counts_own_steps(self) -> None:
        """From now on step indices are the job's own; whatever the hooks counted before is taken back."""
        if not self._ints[IntCell.COUNTS_OWN_STEPS]:
            self._ints[_LAST_STEP] = UNKNOWN
            self._ints[_FIRST_STEP] = UNKNOWN
            self._floats[_FIRST_STEP_AT] = self._floats[_LAST_STEP_AT] = NAN
            self._ints[IntCell.COUNTS_OWN_STEPS] = 1

    def set_activity(self, activity: int, at: float) -> None:
        """Set what the rank does from now on."""
        self._floats[_ACTIVITY_AT] = at
        self._ints[_ACTIVITY] = activity

    def add_data_s(self, seconds: float) -> None:
        """Waited for a data loader. Each of these three is unknown until it is measured for the first time."""
        before = self._floats[_DATA_S]
        self._floats[_DATA_S] = seconds if before != before else before + seconds

    def add_gc_s(self, seconds: float) -> None:
        before = self._floats[_GC_S]
        self._floats[_GC_S] = seconds if before != before else before + seconds

    def set_collecting(self, is_collecting: bool) -> None:
        """A full collection begins or ends: the stack stays, all threads wait, and it is no loop."""
        self._ints[IntCell.COLLECTING] = is_collecting

    def add_work(self, amount: float) -> None:
        before = self._floats[_WORK]
        self._floats[_WORK] = amount if before != before else before + amount

    def set_evaluation_s(self, seconds: float) -> None:
        """An evaluation is over; it took so long."""
        self._floats[FloatCell.EVALUATION_S] = seconds

    def set_checkpoint_s(self, seconds: float) -> None:
        self._floats[FloatCell.CHECKPOINT_S] = seconds

    def set_communication(self, seq: int, at: float) -> None:
        """The sum of the groups' sequence numbers now. Called by the watch thread only."""
        if self._ints[IntCell.COMM_SEQ] != seq:
            self._floats[FloatCell.COMM_MOVED_AT] = at
            self._ints[IntCell.COMM_SEQ] = seq
        self._floats[FloatCell.COMM_LOOKED_AT] = at

    def forget_communication(self) -> None:
        """There is no process group any more: nothing is known."""
        self._floats[FloatCell.COMM_LOOKED_AT] = NAN

    def count_fault(self) -> int:
        """Something of ours failed in this worker; how often so far."""
        self._ints[IntCell.NUM_FAULTS] += 1
        return self._ints[IntCell.NUM_FAULTS]
