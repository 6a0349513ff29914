"""Everything the brain remembers. A fold of the journal; frozen, so that a step can only return another one."""

import enum

import msgspec

from everstep.analyzer.exits import FaultFacts
from everstep.model.facts import Exit, RankAccount
from everstep.model.spec import RunSpec
from everstep.model.verdict import Decision, Verdict


class Phase(enum.StrEnum):
    NEW = "new"  # no RunStarted yet
    GATHERING = "gathering"  # waiting for nodes or for the store of the next generation
    FORMING = "forming"  # workers are being started; not every rank is through yet
    RUNNING = "running"  # every rank of this generation is through rendezvous, or has stepped
    SETTLING = "settling"  # a fault is known and its culprit is not: a later exit, or the evidence of a hang, will tell
    STOPPING = "stopping"  # waiting for nodes to end the generation's workers
    PROPOSING = "proposing"  # mode advise: waiting for approval
    OVER = "over"  # terminal


class Role(enum.StrEnum):
    ACTIVE = "active"  # holds a slot
    STANDBY = "standby"  # admitted, holds no slot
    OUT = "out"  # not part of the run any more; its id never comes back


class Member(msgspec.Struct, frozen=True, kw_only=True):
    node: str
    host: str
    pid: int
    role: Role
    slot: int | None = None  # set exactly when role is ACTIVE


class Worker(msgspec.Struct, frozen=True, kw_only=True):
    """One rank of the current generation."""

    rank: int
    node: str
    started: bool = False  # the agent confirmed the process
    account: RankAccount | None = None
    exit: Exit | None = None


class Formation(msgspec.Struct, frozen=True, kw_only=True):
    """What the current generation was started with; enough to issue its StartWorkers again."""

    store_host: str
    store_port: int
    resume_step: int | None
    at: float
    why: str


class Incident(msgspec.Struct, frozen=True, kw_only=True):
    """The open incident."""

    id: str
    opened_at: float
    generation: int  # in which the fault happened
    best_step: int | None = None  # newest step that every rank had completed when the generation ended
    verdict: Verdict | None = None
    decision: Decision | None = None
    facts: FaultFacts
    drill: str | None = None
    asked: tuple[str, ...] = ()  # nodes whose evidence of a hang has not come
    restarted: bool = False  # a new generation was started because of it


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    outcome: str
    exit_code: int
    why: str


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """The last failure with a place in the user's code, to recognise it when it comes again."""

    place: str
    count: int
    best_step: int | None


class State(msgspec.Struct, frozen=True, kw_only=True):
    run: str = ""
    spec: RunSpec | None = None
    phase: Phase = Phase.NEW
    attempt: int = 1
    generation: int = -1  # invariant: never decreases
    members: dict[str, Member] = {}
    slots: tuple[str | None, ...] = ()  # node of each slot
    requests: tuple[str, ...] = ()  # AcquireNode not answered yet
    num_requests: int = 0
    failed_joins: int = 0  # agents in a row that ended before they joined
    stores: dict[int, tuple[str, int]] = {}  # generation -> host, port; only the current one and the next
    store_asked: int = -1  # newest generation for which OpenStore was issued
    formation: Formation | None = None
    workers: dict[int, Worker] = {}
    held: dict[int, tuple[int, ...]] = {}  # rank -> steps of complete snapshots, as last told
    waiting: tuple[str, ...] = ()  # STOPPING: nodes that have not confirmed
    ending: Ending | None = None  # STOPPING: how it ends instead of restarting; OVER: how it ended
    incident: Incident | None = None
    num_incidents: int = 0
    restarts: tuple[float, ...] = ()  # times of restarts within the budget's window
    failure: Failure | None = None
    best_step: int | None = None  # newest step that every rank has completed, over the run
    has_stepped: bool = False  # some generation reported steps, so recovery is over at the first new step
    pending_drill: str | None = None  # the next incident is its doing
    timers: dict[str, float] = {}
    stale: int = 0  # messages of older generations dropped

    @classmethod
    def initial(cls) -> "State":
        return cls()

    @property
    def active_nodes(self) -> tuple[str, ...]:
        return tuple(node for node in self.slots if node is not None)

    @property
    def is_over(self) -> bool:
        return self.phase is Phase.OVER
