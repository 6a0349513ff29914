"""Contents of a run's journal, as values: the common input of every text, JSON and figure about a run.

Built by `fold`; read by `report`, `cli`, `history`. Nothing here decides or formats. `None` is "not known".
All times are seconds since the epoch, as recorded.
"""

import enum

import msgspec

from everstep.journal.kept import Kept
from everstep.journal.losses import Losses
from everstep.journal.pace import Pace
from everstep.journal.rank_nodes import RankNodes
from everstep.model.actions import Finish, TraceRank
from everstep.model.events import (
    NodeLost,
    RankTraced,
    RuntimeFaulted,
    SnapshotsRefused,
    StateIncomplete,
    StopRequested,
    TemplateReported,
)
from everstep.model.facts import Exit, RankAccount, Started
from everstep.model.record import Record
from everstep.model.spec import RunSpec
from everstep.model.verdict import Decision, Verdict
from everstep.model.versions import FIRST, Stage, Version

STANDSTILL = "wait"
"""The rule of a decision that leaves a job that stands still as it is."""


class RunStatus(enum.StrEnum):
    """The small public status; the same words as in /api/status."""

    STARTING = "starting"
    RUNNING = "running"
    STANDING_STILL = "standing-still"  # and left alone, because it may continue by itself
    RECOVERING = "recovering"
    WAITING_FOR_APPROVAL = "waiting-for-approval"
    STOPPING = "stopping"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    GAVE_UP = "gave-up"
    STOPPED = "stopped"


class GenerationView(msgspec.Struct, kw_only=True):
    number: int
    begun_at: float  # StartWorkers recorded
    seq: int
    resume_step: int | None
    why: str
    restores_from: str = ""  # a checkpoint in the persistent tier; empty: from memory, or nothing
    node_of: RankNodes = msgspec.field(default_factory=RankNodes)
    started: dict[int, Started] = {}
    accounts: dict[int, RankAccount] = {}
    exits: dict[int, Exit] = {}
    version: str = FIRST.id  # of the program
    incident: str | None = None  # the one that ended it
    stop_asked_at: float | None = None
    stopped_at: float | None = None  # last node confirmed
    reported_at: dict[str, float] = {}  # node -> last account of it

    @property
    def counts_own_steps(self) -> bool:
        return any(a.counts_own_steps for a in self.accounts.values())

    @property
    def has_entered(self) -> bool:
        """Every rank that was heard of, and there is one, has entered the program."""
        return bool(self.accounts) and None not in [a.entered_at for a in self.accounts.values()]

    @property
    def has_begun(self) -> bool:
        """Whether every rank has reported its whole start: nothing of that changes any more."""
        accounts = self.accounts.values()
        if len(accounts) < len(self.node_of) or None in [a.first_step_at for a in accounts]:
            return False
        return None not in [a.loop_at for a in accounts]

    @property
    def first_step(self) -> int | None:
        """Index of the first step done, by the job's own count."""
        firsts = [a.first_step for a in self.accounts.values() if a.counts_own_steps and a.first_step is not None]
        return min(firsts, default=None)

    @property
    def last_step(self) -> int | None:
        """Newest step that every rank has done; None until every rank has reported."""
        lasts = [a.last_step for a in self.accounts.values()]
        return None if not lasts or None in lasts else min(lasts)  # type: ignore[type-var]

    @property
    def last_step_at(self) -> float | None:
        return max([a.last_step_at for a in self.accounts.values() if a.last_step_at is not None], default=None)


class NodeView(msgspec.Struct, kw_only=True):
    node: str
    host: str
    pid: int
    joined_at: float
    rack: str = ""  # empty: not known
    slot: int | None = None
    lost: NodeLost | None = None
    template: TemplateReported | None = None  # as reported last
    drained: str = ""  # who drains it, and why; it is left when a standby is ready


class RefusedView(msgspec.Struct, kw_only=True):
    at: float
    seq: int
    what: str
    why: str
    incident: str | None = None


class IncidentView(msgspec.Struct, kw_only=True):
    id: str
    opened_at: float  # recorded: the moment of detection
    seq: int
    generation: int
    drill: str | None = None
    verdict: Verdict | None = None  # the last one concluded
    decision: Decision | None = None
    decided_at: float | None = None  # first conclusion
    concluded_at: float | None = None  # last conclusion
    approved_at: float | None = None
    stopped_at: float | None = None
    next_generation: int | None = None
    closed_at: float | None = None
    outcome: str | None = None
    close_why: str = ""
    recovered_at: float | None = None
    lost_steps: int | None = None
    resumed_step: int | None = None
    refused: list[RefusedView] = []
    trace_asked: TraceRank | None = None  # of a slow rank
    trace: RankTraced | None = None  # what became of it; None: nothing was heard
    records: list[Record] = []  # what happened while it was open, without the periodic accounts

    @property
    def fault_at(self) -> float | None:
        return None if self.verdict is None else min(self.verdict.at, self.opened_at)

    @property
    def is_open(self) -> bool:
        return self.outcome is None

    @property
    def is_left_alone(self) -> bool:
        """The job stands still, and nothing is done yet: it may continue by itself."""
        return self.decision is not None and self.decision.rule == STANDSTILL and self.next_generation is None


class DrillView(msgspec.Struct, kw_only=True):
    drill: str
    kind: str
    at: float
    record: Record
    failed: str | None = None


class Staged(msgspec.Struct, frozen=True, kw_only=True):
    at: float
    seq: int
    stage: Stage
    why: str


class UpdateView(msgspec.Struct, kw_only=True):
    """A change of the program, from the request on."""

    version: Version
    asked_at: float
    stage: Stage = Stage.CHECKING
    history: list[Staged] = []
    back_to: str = ""  # rolled back: what runs instead
    generation: int | None = None  # the first that ran it
    interrupted_at: float | None = None  # the generation before ended, or was asked to
    incident: str | None = None  # the one whose restart it was merged into
    best_step: int | None = None  # newest step that every rank had reported before


class ControllerStart(msgspec.Struct, kw_only=True):
    at: float
    pid: int
    took_over: bool
    torn_bytes: int
    attempt: int


class Gap(msgspec.Struct, kw_only=True):
    """Nothing ran and nothing was written: between the end of everything and `everstep run` on the same directory."""

    begin: float
    end: float


class RunView(msgspec.Struct, kw_only=True):
    run: str
    everstep_version: str
    policy: dict[str, float | int | str | bool]
    spec: RunSpec | None = None  # None: it ended before its first record
    started_at: float | None = None
    last_at: float | None = None  # last record
    last_seq: int = 0
    attempt: int = 1
    generations: list[GenerationView] = []
    nodes: dict[str, NodeView] = {}
    losses: list[NodeLost] = []  # each node's first, in order
    holders: dict[int, str] = {}  # slot -> node that got it last
    incidents: dict[str, IncidentView] = {}
    drills: dict[str, DrillView] = {}
    updates: dict[str, UpdateView] = {}  # in the order of the requests
    refused: list[RefusedView] = []
    snapshots_refused: list[SnapshotsRefused] = []
    incomplete: StateIncomplete | None = None  # newest report that the State leaves something out
    runtime_faults: list[RuntimeFaulted] = []
    controllers: list[ControllerStart] = []
    gaps: list[Gap] = []
    restarts: list[float] = []  # when a generation was started because of an incident that counts
    kept: Kept = msgspec.field(default_factory=Kept)
    step_times: list[tuple[float, float]] = []  # (when, seconds per step of the slowest rank), newest last
    pace: Pace = msgspec.field(default_factory=Pace)  # of all ranks, over the whole run
    loss: Losses = msgspec.field(default_factory=Losses)  # as one rank reported it
    open_incident: str | None = None
    stop_requested: StopRequested | None = None
    finish: Finish | None = None
    finished_at: float | None = None
    num_unknown: dict[str, int] = {}  # records of a newer everstep, by type
    torn_bytes: int = 0

    @property
    def generation(self) -> GenerationView | None:
        return self.generations[-1] if self.generations else None

    @property
    def incident(self) -> IncidentView | None:
        """The open one."""
        return None if self.open_incident is None else self.incidents[self.open_incident]

    @property
    def is_over(self) -> bool:
        return self.finish is not None

    @property
    def status(self) -> RunStatus:
        if self.finish is not None:
            return RunStatus(self.finish.outcome)
        if self.stop_requested is not None:
            return RunStatus.STOPPING
        incident = self.incident
        if incident is not None and incident.is_left_alone:
            return RunStatus.STANDING_STILL
        if incident is not None:
            return RunStatus.WAITING_FOR_APPROVAL if _is_proposed(incident) else RunStatus.RECOVERING
        generation = self.generation
        if generation is None or not generation.has_entered:
            return RunStatus.STARTING
        return RunStatus.RUNNING

    @property
    def stepped(self) -> GenerationView | None:
        """The newest generation in which every rank has done a step."""
        return next((g for g in reversed(self.generations) if g.last_step is not None), None)

    def restarts_used(self, now: float) -> int:
        """Within the policy's window."""
        window_s = float(self.policy.get("budget_window_s", 0.0))
        return sum(at > now - window_s for at in self.restarts)


def _is_proposed(incident: IncidentView) -> bool:
    """Mode advise: decided, written down as not done, and not yet approved."""
    decision = incident.decision
    if decision is None or decision.rule != "mode-advise" or incident.approved_at is not None:
        return False
    return incident.stopped_at is not None and any(refused.what == decision.chosen for refused in incident.refused)
