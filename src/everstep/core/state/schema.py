"""Everything the brain remembers. A fold of the journal; frozen, so that a step can only return another one."""

import enum

import msgspec

from everstep.analyzer.exits import FaultFacts
from everstep.analyzer.numbers.alerts import SeenAlert
from everstep.core.state.course import Course, Examination, FruitlessRestarts
from everstep.core.state.frozenmap import FrozenMap, Names
from everstep.core.state.phases import Phase
from everstep.core.state.workers import Tally, Worker
from everstep.model.facts import Checkpoint, Exit, Fetch, Held, RankGroup
from everstep.model.spec import RunSpec
from everstep.model.verdict import Decision, Verdict
from everstep.model.versions import FIRST, Stage, Version


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
    suspected: bool = False  # it is being ended: a standby that noticed a fault of its own, or a node that says nothing
    silent: str = ""  # why it counts as lost, although its end is still to be reported
    may_be_late: bool = False  # ... unless the engine finds that it lives: then it is not lost
    endpoint: str = ""  # "host:port" of its snapshot server; empty: it serves no snapshots
    rack: str = ""  # rack or switch; empty: not known
    meant_for: int | None = None  # slot that the user gave its host; None: any


class Formation(msgspec.Struct, frozen=True, kw_only=True):
    """The values that the current generation was started with; enough to issue its StartWorkers again."""

    store_host: str
    store_port: int
    resume_step: int | None
    at: float
    why: str
    fetch: tuple[Fetch, ...] = ()  # of all nodes: snapshots that lie elsewhere than where they are needed
    former_world: int = 0  # from the memory of a generation of so many ranks: `fetch` has all of them; 0: as many
    restore_path: str = ""  # the checkpoint from which all ranks are restored; empty: from memory
    version: Version | None = None  # None: what the run was started with, where the user has it


class Struck(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot, or a checkpoint, that could not be restored or must not be: never tried again."""

    step: int
    generation: int  # in which it failed: a snapshot that was written since is another one
    at: float  # ... and so is a checkpoint
    why: str
    rank: int | None = None  # None: of all ranks
    node: str = ""  # that holds a copy; empty: the rank's own memory, which may outlive the node
    path: str = ""  # of a checkpoint, instead
    is_damaged: bool = True  # False: it could not be read, however often it was tried in this attempt of the run
    is_untrusted: bool = False  # it can be read, and a corruption may be in it


class Flaw(msgspec.Struct, frozen=True, kw_only=True):
    """Why snapshots of the program's State are not used."""

    why: str
    generation: int
    version: str
    is_unfit: bool  # the program does not load what it saved; else a step changes what the State leaves out


class Unread(msgspec.Struct, frozen=True, kw_only=True):
    """The step that the last generations were to resume from, and could not read; that may pass."""

    step: int
    path: str
    generation: int  # the last one of them
    count: int


class Corruption(msgspec.Struct, frozen=True, kw_only=True):
    """Replicas differed, and the job went back because of it."""

    at: float
    ranks: tuple[int, ...]
    trusted_step: int | None  # as far as was trusted then
    node: str = ""  # the node whose replica differed; empty: no single node


class Persisting(msgspec.Struct, frozen=True, kw_only=True):
    """A step on its way to the persistent tier: first every node's part, then the commit of the whole."""

    step: int
    generation: int
    begun_at: float
    limit_s: float
    missing: Names  # nodes whose part is not there; empty: it is being committed
    committer: str  # node that commits
    is_trusted: bool = False  # as it was committed
    written_bytes: int = 0
    total_bytes: int = 0
    is_late: bool = False  # the next step was due, and this one was still on its way


class Incident(msgspec.Struct, frozen=True, kw_only=True):
    """The open incident."""

    id: str
    opened_at: float
    generation: int  # in which the fault happened
    lived_s: float = 0.0  # how long that generation had been there
    best_step: int | None = None  # newest step that every rank had completed when the generation ended
    unheard: tuple[int, ...] = ()  # ranks whose last step is unknown: at least `best_step`
    verdict: Verdict | None = None
    decision: Decision | None = None
    facts: FaultFacts  # but for the exits
    exits: FrozenMap[int, Exit] = FrozenMap()  # rank -> how it ended, in order of the reports
    drill: str | None = None
    asked: Names = Names()  # nodes whose evidence of a hang has not come
    evicting: tuple[str, ...] = ()  # nodes that are ended because they are suspected; also when they are gone
    not_evicted: tuple[str, ...] = ()  # the engine did not end them
    examination: Examination | None = None  # under way in phase EXAMINING; over: what it found
    restarted: bool = False  # a new generation was started because of it
    through_at: float | None = None  # when that was where it can train; it reports no steps, so more has to be seen

    @property
    def known(self) -> FaultFacts:
        """All of the facts, to be judged."""
        return msgspec.structs.replace(self.facts, exits=tuple(self.exits.values()))


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """The run's experience with one place at which the job stood still (`run.standstill`)."""

    times: int = 0  # that a restart was made because of it; a certain one counts only without progress in between
    step: int | None = None  # at which it stood the last time
    at: float = 0.0  # of the last restart because of it
    longest_s: float = 0.0  # that it took and ended by itself


class Standstill(msgspec.Struct, frozen=True, kw_only=True):
    """The job stands still, and may recover by itself: left alone until `act_at`, or for ever."""

    incident: Incident  # open, and not the current one: whatever else happens has one of its own
    since: float
    act_at: float | None
    place: str  # key of `places`
    step: int | None = None


class Deferred(msgspec.Struct, frozen=True, kw_only=True):
    """A machine is to blame, and was left where it is only for lack of a standby."""

    verdict: Verdict
    nodes: tuple[str, ...]
    at: float


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    outcome: str
    exit_code: int
    why: str
    signal: int = 15  # what the ranks get: what the launcher got
    save_by: float | None = None  # the last step has to be in the persistent tier by then; None: no such haste


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """The last failure of the program's own, to recognise it when it comes again."""

    place: str  # "train.py:212"; "exit code 3" or "SIGSEGV" where no place is known
    count: int
    best_step: int | None
    at: float = 0.0


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A version of the user's program and where it is on its way."""

    version: Version
    stage: Stage
    checked_on: str = ""  # node that looks whether it can start, while it does


class State(msgspec.Struct, frozen=True, kw_only=True):
    run: str = ""
    spec: RunSpec | None = None
    phase: Phase = Phase.NEW
    attempt: int = 1
    generation: int = -1  # invariant: never decreases
    members: FrozenMap[str, Member] = FrozenMap()
    slots: tuple[str | None, ...] = ()  # node of each slot
    num_vacant: int = 0  # slots without a node
    first_vacant: int | None = None  # the lowest of them
    requests: tuple[str, ...] = ()  # AcquireNode not answered yet
    num_requests: int = 0
    failed_joins: int = 0  # agents in a row that ended before they joined
    silenced: tuple[float, ...] = ()  # when nodes were lost because nothing was heard of them, within the last minute
    stores: dict[int, tuple[str, int]] = {}  # generation -> host, port; only the newest one
    store_asked: int = -1  # newest generation for which OpenStore was issued
    formation: Formation | None = None
    workers: FrozenMap[int, Worker] = FrozenMap()
    tally: Tally = Tally()  # of the workers
    held: FrozenMap[int, Held] = (
        FrozenMap()
    )  # rank -> snapshots in the memory of the node that has its slot, as last reported
    # node -> snapshots of other nodes' ranks in its memory, as last reported
    copies: FrozenMap[str, tuple[Held, ...]] = FrozenMap()
    checkpoints: tuple[Checkpoint, ...] = ()  # whole ones in the persistent tier
    resumes: dict[int, int | None] = {}  # generation -> step that it resumed from; None: from the beginning
    trusted_step: int | None = None  # newest step of this history after which all replicas held the same
    struck: tuple[Struck, ...] = ()
    unread: Unread | None = None
    flaw: Flaw | None = None
    corruptions: tuple[Corruption, ...] = ()  # within the budget's window
    waiting: Names = Names()  # STOPPING: nodes that have not confirmed
    ending: Ending | None = None  # STOPPING: how it ends instead of restarting; OVER: how it ended
    incident: Incident | None = None
    recovered: Incident | None = None  # the last one, for as long as a late report of a node may explain it
    standstill: Standstill | None = None  # phase RUNNING only
    places: FrozenMap[str, Place] = FrozenMap()  # at which the job stood still: what was learnt of them
    num_incidents: int = 0
    alerts: tuple[SeenAlert, ...] = ()  # newest last, of the last hour
    outlived_at: float | None = None  # as of the last incident: what nodes noticed earlier, the job trained after
    unjudged: tuple[SeenAlert, ...] = ()  # new ones of active nodes, while a fault was being handled
    deferred: tuple[Deferred, ...] = ()  # looked at again when a standby joins
    traced: tuple[str, ...] = ()  # "ES-S01 of rank 3", one for each trace that was asked for
    evictions: tuple[float, ...] = ()  # times of evictions within the budget's window
    restarts: tuple[float, ...] = ()  # times of restarts within the budget's window
    failure: Failure | None = None
    course: Course | None = None  # how far the flow has gone against faults without a culprit
    group_evicted_at: float | None = None
    fruitless: FruitlessRestarts | None = None
    is_backing_off: bool = False  # GATHERING: the next generation waits for its timer
    best_step: int | None = None  # newest step that every rank has completed, over the run
    has_stepped: bool = False  # some generation reported steps, so recovery is over at the first new step
    has_own_steps: bool = False  # steps are numbered by the program; else from 0 in each generation
    groups: tuple[RankGroup, ...] = ()  # the job's parallel groups, as far as its ranks declared them
    backups: dict[int, str] = {}  # rank -> node that its snapshots are copied to, in `backups_generation`
    backups_generation: int = -1
    unprotected: tuple[tuple[str, str], ...] = ()  # what the placement cannot protect from, and why, as last reported
    checkpoints_known: bool = False  # the contents of the persistent tier were reported in this attempt
    persisting: Persisting | None = None
    # step -> when its write began; the attempt was abandoned, its commit may still come
    uncommitted: dict[int, float] = {}
    persist_at: float | None = None  # when the next step is due in the persistent tier
    marked_step: int = -1  # newest checkpoint that was asked to be marked as trusted after it was committed
    persist_refused: str = ""  # why none is written, as last reported
    pending_drills: dict[str, str] = {}  # id -> kind: asked for in this generation; incidents can be their doing
    candidates: tuple[Candidate, ...] = (Candidate(version=FIRST, stage=Stage.RUNNING),)  # in the order of their ids
    version: str = FIRST.id  # what runs, or is started next
    version_generation: int = 0  # the first that ran it
    version_since: int | None = None  # newest step that was complete when it was started first
    has_returned: bool = False  # a version was rolled back to: its code is taken from the copy, also v0's
    updating: str = ""  # STOPPING: for this version, and not because of a fault
    growing: int = 0  # STOPPING: to continue with more nodes, and not because of a fault
    fixed_slots: int = 0  # the program can continue with this number of nodes only; 0: with any
    fixed_why: str = ""
    shrinks: tuple[float, ...] = ()  # times within the budget's window at which the job continued with fewer nodes
    shrink_refused: int = -1  # generation to come for which it was reported that the job waits
    proposed_version: str = ""  # PROPOSING: the version to roll back to, if that is approved
    timers: FrozenMap[str, float] = FrozenMap()
    stale: int = 0  # messages of older generations dropped
    unlisted: str = ""  # the last change of phase that is not in the table: a bug of ours, which ends no run

    @classmethod
    def initial(cls) -> "State":
        return cls()

    @property
    def active_nodes(self) -> tuple[str, ...]:
        return tuple(node for node in self.slots if node is not None)

    def is_active(self, node: str | None) -> bool:
        """Whether it holds a slot; of one node, this is much cheaper to ask than `active_nodes`."""
        member = self.members.get(node) if node is not None else None
        return member is not None and member.role is Role.ACTIVE

    @property
    def is_over(self) -> bool:
        return self.phase is Phase.OVER
