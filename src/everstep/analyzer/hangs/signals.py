"""Four signals per rank, and the job's own rhythm that shows when silence is unusual. Values only.

A signal is "how long it has been silent", or None if unknown. None counts neither as silent nor as healthy. Filled by
the monitor from its probes, judged by `hang`.
"""

import enum
import math
from collections.abc import Iterable

import msgspec

from everstep.analyzer.observations.clusters import Activity


class Signal(enum.StrEnum):
    LOG = "log"  # new output
    STACK = "stack"  # a stack that was not seen in the window
    DEVICE = "device"  # processor time, bytes to the wire or a disk. A GPU at 100 % is no sign: NCCL spins in a wait
    COMMUNICATION = "communication"  # a sequence number that moved


class Phase(enum.StrEnum):
    STARTUP = "startup"  # before the first step of this generation
    TRAIN = "train"
    EVALUATION = "evaluation"
    CHECKPOINT = "checkpoint"
    FINISH = "finish"  # after the loop: the last save, the last evaluation, the last barrier


class WaitsOn(enum.StrEnum):
    """Kind of wait of a main thread that does not wait for the other ranks."""

    NOTHING = ""  # not known, or nothing that could be late: a lock, a process in uninterruptible sleep
    OWN = "own"  # processes of its own, and they work: a data loader
    OUTSIDE = "outside"  # what something else has to do: a socket, a file, a timer


def phase_seen(reported: Phase, activities: Iterable[Activity]) -> Phase:
    """The phase, where stacks show more than the job reported: an unannounced save is still a save."""
    if reported is Phase.TRAIN and Activity.SAVING in activities:
        return Phase.CHECKPOINT
    return reported


class RankSample(msgspec.Struct, frozen=True, kw_only=True):
    """One look at one rank."""

    rank: int
    log_s: float | None = None  # seconds since the last sign of life, per signal
    stack_s: float | None = None
    device_s: float | None = None
    communication_s: float | None = None
    phase: Phase = Phase.TRAIN
    log_gap_s: float | None = None  # longest silence of its log so far; a job that logs every minute is quiet for one
    paused: bool = False  # a debugger holds it and said so (everstep.pause, or a tracer at the documented marker)
    busy: str = ""  # "says that it is busy: uploading"

    waits_on: WaitsOn = WaitsOn.NOTHING
    waits_for: str = ""  # "waits for a socket", when it is outside
    wait_left_s: float | None = None  # when its timer ends

    def silent_s(self, signal: Signal) -> float | None:
        value: float | None = getattr(self, f"{signal}_s")
        if value is None or not math.isfinite(value) or value < 0:  # a clock that went back is no measurement
            return None
        return value


class Rhythm(msgspec.Struct, frozen=True, kw_only=True):
    """Durations of this job when it is well: newest last, steps in which a fault was handled left out."""

    step_s: tuple[float, ...] = ()
    evaluation_s: tuple[float, ...] = ()
    checkpoint_s: tuple[float, ...] = ()
    startup_s: tuple[float, ...] = ()  # earlier generations of this run

    def of(self, phase: Phase) -> tuple[float, ...]:
        by_phase = {
            Phase.STARTUP: self.startup_s,
            Phase.TRAIN: self.step_s,
            Phase.EVALUATION: self.evaluation_s,
            Phase.CHECKPOINT: self.checkpoint_s,
            Phase.FINISH: (*self.step_s, *self.evaluation_s, *self.checkpoint_s),
        }
        return tuple(value for value in by_phase[phase] if math.isfinite(value) and value >= 0)
