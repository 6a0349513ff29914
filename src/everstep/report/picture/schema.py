"""The values of the picture. Each row has a key, so that a reader who gets it twice can deduplicate it (docs/page.md).

Times are seconds since the epoch. None is "not measured", never zero.
"""

import enum

import msgspec


class Lane(enum.StrEnum):
    """Activity of the job as a whole."""

    STARTING = "starting"
    PRODUCTIVE = "productive"
    LOST = "lost"  # trained, and had to be done again
    RECOVERING = "recovering"  # from the fault to the first new step
    IDLE = "idle"  # nothing ran: between two attempts, or after the last rank's end
    UNMEASURED = "unmeasured"


class Segment(msgspec.Struct, frozen=True, kw_only=True):
    begin: float
    end: float | None  # None: it lasts
    lane: Lane
    incident: str | None = None


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to "is it moving, and if not, what is being done": first on every screen."""

    run: str
    program: str
    status: str
    is_over: bool
    is_gone: bool  # it did not end, and no controller has it
    needs_you: bool  # a person must act: an approval, a failed run, a controller that is gone
    now: str  # one sentence
    what: str  # of the open incident; empty without one
    doing: str
    next: str
    incident: str | None
    as_of: float
    started_at: float | None
    finished_at: float | None
    last_step_at: float | None
    step: int | None
    step_s: float | None
    median_step_s: float | None
    drift: str  # "5% slower than a day ago (2.21s)"; empty: there is no such day
    generation: int | None
    world_size: int | None
    mode: str
    version: str | None
    restarts_used: int
    restarts_allowed: int | None
    num_incidents: int
    snapshot_step: int | None
    steps_at_risk: int | None  # if a rank dies
    steps_if_node_dies: int | None  # the worst node
    copies: tuple[tuple[str, str], ...]  # (name, sentence): memory, copies, disk
    active: int
    standby: int
    lost: int
    outcome: str | None
    exit_code: int | None
    why: str
    notes: tuple[str, ...]
    command: str  # that says the same in a terminal


class IncidentRow(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    at: float
    code: str
    name: str
    who: str
    node: str | None
    sentence: str
    outcome: str | None  # None: open
    drill: str | None
    lost_s: float | None
    lost_steps: int | None
    detect_s: float | None


class GenerationRow(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    begun_at: float
    resume_step: int | None
    why: str
    version: str
    segments: tuple[Segment, ...]


class Health(enum.StrEnum):
    """One letter per machine of the fleet map."""

    ACTIVE = "a"
    STANDBY = "s"
    SUSPECT = "w"  # the open incident names it
    OUT = "x"  # lost or evicted
    UNKNOWN = "u"  # it joined, and nothing was asked of it yet


class FleetRow(msgspec.Struct, frozen=True, kw_only=True):
    """One rack, or 64 machines of which the rack is not known."""

    rack: str
    nodes: tuple[str, ...]
    health: str  # a letter per node
    incidents: dict[str, int]  # nodes that were named in incidents, and how often


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    at: float
    says: str
    is_key: bool  # a decision, the fault, the recovery
    seq: int | None


class PhaseLength(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    length_s: float | None


class Piece(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of the evidence."""

    source: str
    at: float
    says: str
    detail: str
    seqs: str


class Similar(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    at: float
    why: str  # "same code, same node"
    lost_s: float | None
    outcome: str | None


class IncidentPage(msgspec.Struct, frozen=True, kw_only=True):
    row: IncidentRow
    belief: str
    close_why: str
    recovered_s: float | None
    cost_gpu_h: float | None  # of all ranks
    phases: tuple[PhaseLength, ...]
    restore_s: float | None
    timeline: tuple[Moment, ...]
    evidence: tuple[Piece, ...]
    examined: tuple[str, ...]
    trace: tuple[str, ...]  # of a slow rank: where it is, or why there is none
    trace_opens: str  # how; empty: there is none
    chosen: str
    rule: str
    why: str
    then: str
    refused: tuple[tuple[str, str], ...]
    similar: tuple[Similar, ...]
    do_now: str
    commands: tuple[str, ...]
    generation: int
