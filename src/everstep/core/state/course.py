"""The state of ByteRobust's flow: how far it has gone (`Course`), and the examination that is under way."""

import enum

import msgspec

from everstep.core.state.frozenmap import FrozenMap, Names
from everstep.model.facts import ExamKind
from everstep.model.verdict import Refusal


class FlowStage(enum.StrEnum):
    """The stages that are tried against a fault without a culprit, in this order."""

    REATTEMPT = "reattempt"  # restart where it was: most such faults do not come again
    EVICT_GROUP = "evict-group"  # a hang: the machines of the group that its outliers share
    EXAMINE = "examine"  # stop-time checks of all machines, then restart without what failed
    ROLL_BACK = "roll-back"  # the version of the code that trained
    REPLAY = "replay"  # dual-phase replay of the job's layout, then restart without what failed
    GIVE_UP = "give-up"


class Course(msgspec.Struct, frozen=True, kw_only=True):
    """How far the flow has gone against faults that keep coming."""

    stage: FlowStage
    incident: str  # for which this stage was reached
    at: float
    best_step: int | None  # newest step that was complete then
    times: int = 1  # faults in a row that were met with this stage


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """One node's answer for its part of a round. `passed` None: it could not be examined."""

    passed: bool | None
    why: str
    blames: tuple[str, ...] = ()
    digest: str = ""


class ExamRound(msgspec.Struct, frozen=True, kw_only=True):
    """One examination of groups of nodes, all at the same time."""

    exam: str  # "i3/1"
    kind: ExamKind
    groups: tuple[tuple[str, ...], ...]
    answers: FrozenMap[str, Answer] = FrozenMap()


class Examination(msgspec.Struct, frozen=True, kw_only=True):
    """All rounds that are made for one incident while the job stands still."""

    stage: FlowStage  # EXAMINE or REPLAY
    begun_at: float
    nodes: tuple[str, ...]  # active ones in the order of their slots, then standbys that serve for comparison
    store: tuple[str, int]  # host and port: of the generation that has ended, under keys of the exam's own
    shape: tuple[tuple[str, int], ...] = ()  # of the job's layout
    pipeline: int = 1  # machines that one pipeline spans
    rounds: tuple[ExamRound, ...] = ()  # the last one is under way unless it is over
    waiting: Names = Names()
    is_over: bool = False
    failed: dict[str, str] = {}  # node -> the check that it failed, in a sentence
    unclear: tuple[Refusal, ...] = ()  # suspicions that identify no node, and checks without an answer
    says: str = ""  # the outcome in a sentence


class FruitlessRestarts(msgspec.Struct, frozen=True, kw_only=True):
    """Restarts in a row without a new step in between."""

    count: int
    at: float
    best_step: int | None
