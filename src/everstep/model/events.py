"""Events: facts, past tense, with the time at which they happened. The only input of `core.step`.

They are also what the journal keeps and what agents and the launcher report, so they only ever grow: a field is
added with a default, a type is never removed or given another meaning.
"""

from typing import TypeAlias

from everstep.model.facts import (
    Alert,
    Checkpoint,
    Exit,
    Gathered,
    Held,
    LossPoint,
    RankAccount,
    RankGroup,
    Started,
)
from everstep.model.observations import (
    DigestsReported,
    Happened,
    LinksReported,
    NumbersReported,
    RoundReported,
    SignalsReported,
)
from everstep.model.spec import RunSpec
from everstep.model.verdict import Refusal, Verdict


class RunStarted(Happened, frozen=True, kw_only=True):
    """The first record of every journal."""

    run: str
    spec: RunSpec
    everstep_version: str
    policy: str  # preset's name, for people; its values are in the record's header


class RunReopened(Happened, frozen=True, kw_only=True):
    """`everstep run` on a run directory whose run had not ended: memory is gone, the history stays."""

    attempt: int


class ControllerStarted(Happened, frozen=True, kw_only=True):
    pid: int
    took_over: bool = False  # an earlier controller of this run ended without closing it
    torn_bytes: int = 0  # cut off the journal's tail on opening


class NodeJoined(Happened, frozen=True, kw_only=True):
    """An agent said hello; also after a lost connection. `generation` is what it is running, -1 for nothing."""

    node: str
    host: str
    pid: int
    generation: int = -1
    stopped: bool = True  # no worker of `generation` is alive
    held: tuple[Held, ...] = ()
    backups: tuple[Held, ...] = ()  # copies of other nodes' ranks
    endpoint: str = ""  # "host:port" of its snapshot server; empty: it has none
    rack: str = ""  # rack or switch that it shares with others; empty: not known
    meant_for: int | None = None  # slot that the user gave this host (--node-rank); None: any


class NodeLost(Happened, frozen=True, kw_only=True):
    """The agent is gone, and with it its workers. `kept`: snapshots of its ranks that outlived it, in memory for the
    next node in its slot."""

    node: str
    reason: str
    exit_code: int | None = None
    signal: int | None = None
    kept: tuple[Held, ...] = ()


class NodeSilent(Happened, frozen=True, kw_only=True):
    """Nothing was heard of a node for too long. What ends it answers with its loss."""

    node: str
    silent_s: float


class NodeSpared(Happened, frozen=True, kw_only=True):
    """A silent node was not ended: its machine is heard, or its process is seen to live, and it is only late."""

    node: str
    why: str


class NodeInDoubt(Happened, frozen=True, kw_only=True):
    """Nothing of this node arrived for longer than it may continue by itself: it stood still, or was cut off. It asks
    whether it is still counted on; its ranks stand still meanwhile. Answered by SettleDoubt, or its release."""

    node: str
    number: int  # of the question
    silent_s: float


class NodeRefused(Happened, frozen=True, kw_only=True):
    """The engine could not give the node that was asked for."""

    why: str


class StoreOpened(Happened, frozen=True, kw_only=True):
    generation: int
    host: str
    port: int


class TemplateReported(Happened, frozen=True, kw_only=True):
    """Whether ranks of this node could continue from their twins; before 0.2, be forked from a template process."""

    node: str
    usable: bool
    why: str = ""
    num_modules: int = 0
    took_s: float = 0.0


class WorkersStarted(Happened, frozen=True, kw_only=True):
    node: str
    generation: int
    started: tuple[Started, ...]


class WorkersFailedToStart(Happened, frozen=True, kw_only=True):
    """The agent could not even make the processes."""

    node: str
    generation: int
    why: str


class MarksReported(Happened, frozen=True, kw_only=True):
    """Ranks reached a mark of `RankAccount` (entered, rendezvous, first step): sent at once, not with the heartbeat."""

    node: str
    generation: int
    accounts: tuple[RankAccount, ...]


class ProgressReported(Happened, frozen=True, kw_only=True):
    """The periodic account of a node's ranks."""

    node: str
    generation: int
    accounts: tuple[RankAccount, ...]


class AnomalyFound(Happened, frozen=True, kw_only=True):
    """The job runs, and something is wrong with it: slow, numbers gone wrong, replicas that differ. `refusal`: a rank
    takes longer and no machine is to blame."""

    generation: int
    verdict: Verdict
    refusal: Refusal | None = None
    agreed_step: int | None = None  # of replicas that differ: newest step known after which all held the same
    is_declared: bool = True  # False: not declared replicas, they were only seen to hold the same


class NodeAlerted(Happened, frozen=True, kw_only=True):
    """Alerts that a node raised about itself, or from the logs of its ranks."""

    node: str
    alerts: tuple[Alert, ...]


class HangSuspected(Happened, frozen=True, kw_only=True):
    """The hang rule says that the job stands still."""

    generation: int
    ranks: tuple[int, ...]  # silent by their own signals: culprit and victims alike
    since: float  # last sign of progress
    window_s: float  # longest silence that would have been usual
    why: str
    silent: dict[int, str] = {}  # rank -> its own sentence
    place: str = ""  # where the rank that keeps the others waiting stands, as "train.py:88 upload"


class StandstillEnded(Happened, frozen=True, kw_only=True):
    """A standstill that was left alone ended by itself: every rank did something since."""

    generation: int
    incident: str
    lasted_s: float


class RestartRequested(Happened, frozen=True, kw_only=True):
    """A user does not want to wait until a standstill ends (`everstep restart`)."""

    by: str = ""


class EvidenceCollected(Happened, frozen=True, kw_only=True):
    """A node's answer to `CollectEvidence`. The evidence itself is in files."""

    node: str
    generation: int
    incident: str
    gathered: tuple[Gathered, ...]
    took_s: float


class RankTraced(Happened, frozen=True, kw_only=True):
    """Outcome of a trace. Answers `TraceRank`; changes nothing but what is known of the incident."""

    node: str
    generation: int
    incident: str
    rank: int
    file: str = ""  # on the node's host, below the run directory; empty: there is none
    path: str = ""  # the same file, from the root of that host
    num_bytes: int = 0
    seconds: float = 0.0
    why: str = ""  # there is none, or which tracks are missing and why


class Diagnosed(Happened, frozen=True, kw_only=True):
    """Verdict on the collected evidence. Answers `Diagnose`."""

    generation: int
    incident: str
    verdict: Verdict
    moved_on: bool = False  # every rank has done a step since the suspicion
    limit_s: float | None = None  # time limit of the collectives that ranks wait in; None: not known


class NodeExamined(Happened, frozen=True, kw_only=True):
    """A node's result of its part of an examination. Answers `ExamineNode`."""

    node: str
    generation: int
    exam: str
    passed: bool | None  # None: it could not be examined, or not to the end
    why: str  # one sentence; of a pass as well
    blames: tuple[str, ...] = ()  # nodes of its group that it saw fail, itself perhaps among them
    digest: str = ""  # of what was computed: equal on all nodes that did the same, bit by bit
    took_s: float = 0.0


class WorkerExited(Happened, frozen=True, kw_only=True):
    """A worker ended by itself (also with success). Ends that we caused come in `WorkersStopped`."""

    node: str
    generation: int
    exit: Exit
    account: RankAccount | None = None


class WorkersStopped(Happened, frozen=True, kw_only=True):
    """No worker of this generation is alive on this node any more. Answers `StopWorkers`."""

    node: str
    generation: int
    exits: tuple[Exit, ...] = ()
    accounts: tuple[RankAccount, ...] = ()
    held: tuple[Held, ...] = ()
    backups: tuple[Held, ...] = ()  # copies of other nodes' ranks
    num_killed: int = 0  # needed SIGKILL after the grace period


class SnapshotsRefused(Happened, frozen=True, kw_only=True):
    """A rank asked for snapshot memory and did not get it; it trains on without."""

    node: str
    rank: int
    generation: int
    needed_bytes: int
    free_bytes: int | None
    why: str


class ReplicasAgreed(Happened, frozen=True, kw_only=True):
    """All replicas held the same parameters after this step: its snapshot can be trusted. Reported for the newest such
    step, now and then; a comparison that could not be made is not reported."""

    generation: int
    step: int


class LossNoted(Happened, frozen=True, kw_only=True):
    """How the loss developed since the last of these, as one rank reported it: a few points of many, oldest first. For
    people; nothing is decided by it."""

    generation: int
    rank: int
    points: tuple[LossPoint, ...]


class GroupsLearned(Happened, frozen=True, kw_only=True):
    """The job's parallel groups, as its ranks declared them. Once per generation, and again when they grow."""

    generation: int
    groups: tuple[RankGroup, ...]


class RestoreFailed(Happened, frozen=True, kw_only=True):
    """A snapshot that was to be restored is not there, not whole, or damaged. The rank does not start from it."""

    node: str
    generation: int
    rank: int
    step: int
    source: str  # "memory" | "peer" | "disk"
    where: str  # node of the peer, or path of the checkpoint
    why: str
    is_damaged: bool = True  # False: it could not be read this time (a storage that does not answer), and may be whole
    is_unfit: bool = False  # it is whole, and the program does not load it: it would load no other one


class StateIncomplete(Happened, frozen=True, kw_only=True):
    """A step changes what the program's State does not keep. No snapshot of this generation can be resumed exactly."""

    node: str
    generation: int
    rank: int
    step: int  # after which it was found out
    why: str  # which objects, how much of them, and what to write instead


class SizeFixed(Happened, frozen=True, kw_only=True):
    """The program cannot continue with another number of ranks: it declares so, or its state cannot be spread over
    them."""

    node: str
    generation: int
    rank: int
    world_size: int  # ranks with which it can continue
    why: str


class SnapshotPersisted(Happened, frozen=True, kw_only=True):
    """A node's answer to `PersistSnapshot`: its ranks' part of the step is in the persistent tier, or why not."""

    node: str
    generation: int
    step: int
    written_bytes: int = 0
    total_bytes: int = 0  # what it would have been without what was there already
    took_s: float = 0.0
    why: str = ""  # empty: it is there


class CheckpointCommitted(Happened, frozen=True, kw_only=True):
    """Answers `CommitCheckpoint`: from now on the step can be restored from the persistent tier, or why not."""

    node: str
    step: int
    checkpoint: Checkpoint | None = None
    dropped: tuple[int, ...] = ()  # steps that retention took away
    why: str = ""


class CheckpointsFound(Happened, frozen=True, kw_only=True):
    """Checkpoints in the persistent tier when a run, or an attempt, begins. Reported before the first generation
    forms."""

    checkpoints: tuple[Checkpoint, ...] = ()
    why: str = ""  # it could not be read


class RuntimeFaulted(Happened, frozen=True, kw_only=True):
    """Something of ours inside a worker failed and was swallowed; training continued."""

    node: str
    rank: int
    generation: int
    where: str
    why: str


class TimerFired(Happened, frozen=True, kw_only=True):
    key: str


class StopRequested(Happened, frozen=True, kw_only=True):
    why: str  # "SIGINT", "SIGTERM"
    signal: int


class DrillRequested(Happened, frozen=True, kw_only=True):
    """A user asked for a fault to be injected."""

    drill: str  # id: d1, d2, ...
    kind: str  # one of core.faults.drills
    rank: int | None = None
    node: str | None = None
    options: dict[str, float | str] = {}


class EvidenceRequested(Happened, frozen=True, kw_only=True):
    """A user wants to know what all ranks are doing (`everstep doctor`)."""

    request: str  # e41: stands where an incident's id stands in CollectEvidence and EvidenceCollected


class TraceRequested(Happened, frozen=True, kw_only=True):
    """A user wants a trace of a rank that lives on another host (`everstep trace`)."""

    request: str  # t41: stands where an incident's id stands in TraceRank and RankTraced
    rank: int
    seconds: float


class DrillFailed(Happened, frozen=True, kw_only=True):
    drill: str
    why: str


class UpdateRequested(Happened, frozen=True, kw_only=True):
    """A user changed the program: code, arguments or environment. None and empty: as in the version before."""

    version: str  # v1, v2, ...
    source: str = ""  # "git 3f2c1a9", "folder /home/anna/job"
    code: str = ""  # folder that holds the copy of the code
    root: str = ""  # the user's folder that it stands for
    args: tuple[str, ...] | None = None
    env: dict[str, str] = {}  # added to that of the version before; values in plain, as earlier releases wrote them
    variables: dict[str, str] = {}  # the same, name: the version whose file of values has it (`beside.variables`)
    is_urgent: bool = False  # apply it now; else at the next interruption
    by: str = ""
    why: str = ""


class UpdateValidated(Happened, frozen=True, kw_only=True):
    """A node's judgement of a version before it may be started. Answers `ValidateUpdate`."""

    node: str
    version: str
    is_good: bool
    why: str  # what was looked at, or why it cannot start: file and line
    took_s: float = 0.0


class ProposalApproved(Happened, frozen=True, kw_only=True):
    incident: str
    by: str = ""


Event: TypeAlias = (
    RunStarted
    | RunReopened
    | ControllerStarted
    | NodeJoined
    | NodeLost
    | NodeSilent
    | NodeSpared
    | NodeInDoubt
    | NodeRefused
    | StoreOpened
    | TemplateReported
    | WorkersStarted
    | WorkersFailedToStart
    | MarksReported
    | ProgressReported
    | SignalsReported
    | LinksReported
    | NumbersReported
    | DigestsReported
    | RoundReported
    | AnomalyFound
    | NodeAlerted
    | HangSuspected
    | StandstillEnded
    | RestartRequested
    | EvidenceCollected
    | RankTraced
    | Diagnosed
    | NodeExamined
    | WorkerExited
    | WorkersStopped
    | SnapshotsRefused
    | ReplicasAgreed
    | LossNoted
    | GroupsLearned
    | RestoreFailed
    | StateIncomplete
    | SizeFixed
    | SnapshotPersisted
    | CheckpointCommitted
    | CheckpointsFound
    | RuntimeFaulted
    | TimerFired
    | StopRequested
    | DrillRequested
    | EvidenceRequested
    | TraceRequested
    | DrillFailed
    | UpdateRequested
    | UpdateValidated
    | ProposalApproved
)
