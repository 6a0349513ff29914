"""Events: facts, past tense, with the time at which they happened. The only input of `core.step`.

They are also what the journal keeps and what agents and the launcher report, so they only ever grow: a field is
added with a default, a type is never removed or given another meaning.
"""

from typing import TypeAlias

import msgspec

from everstep.model.facts import Exit, Gathered, Held, RankAccount, Signals, Started
from everstep.model.spec import RunSpec
from everstep.model.verdict import Verdict


class _Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag=True):
    at: float  # seconds since the epoch, on the clock of whoever saw it


class RunStarted(_Event, frozen=True, kw_only=True):
    """The first record of every journal."""

    run: str
    spec: RunSpec
    everstep_version: str
    policy: str  # preset's name, for people; its values are in the record's header


class RunReopened(_Event, frozen=True, kw_only=True):
    """`everstep run` on a run directory whose run had not ended: memory is gone, the history stays."""

    attempt: int


class ControllerStarted(_Event, frozen=True, kw_only=True):
    pid: int
    took_over: bool = False  # an earlier controller of this run ended without closing it
    torn_bytes: int = 0  # cut off the journal's tail on opening


class NodeJoined(_Event, frozen=True, kw_only=True):
    """An agent said hello; also after a lost connection. `generation` is what it is running, -1 for nothing."""

    node: str
    host: str
    pid: int
    generation: int = -1
    stopped: bool = True  # no worker of `generation` is alive
    held: tuple[Held, ...] = ()


class NodeLost(_Event, frozen=True, kw_only=True):
    """The agent is gone, and with it its workers. `kept`: snapshots of its ranks that outlived it, and that whoever
    takes its slot finds in memory."""

    node: str
    reason: str
    exit_code: int | None = None
    signal: int | None = None
    kept: tuple[Held, ...] = ()


class NodeRefused(_Event, frozen=True, kw_only=True):
    """The engine could not give the node that was asked for."""

    why: str


class StoreOpened(_Event, frozen=True, kw_only=True):
    generation: int
    host: str
    port: int


class TemplateReported(_Event, frozen=True, kw_only=True):
    """Whether new ranks on this node can be forked from the template process."""

    node: str
    usable: bool
    why: str = ""
    num_modules: int = 0
    took_s: float = 0.0


class WorkersStarted(_Event, frozen=True, kw_only=True):
    node: str
    generation: int
    started: tuple[Started, ...]


class WorkersFailedToStart(_Event, frozen=True, kw_only=True):
    """The agent could not even make the processes."""

    node: str
    generation: int
    why: str


class MarksReported(_Event, frozen=True, kw_only=True):
    """Ranks reached a mark of `RankAccount` (entered, rendezvous, first step): sent at once, not with the heartbeat."""

    node: str
    generation: int
    accounts: tuple[RankAccount, ...]


class ProgressReported(_Event, frozen=True, kw_only=True):
    """The periodic account of a node's ranks."""

    node: str
    generation: int
    accounts: tuple[RankAccount, ...]


class SignalsReported(_Event, frozen=True, kw_only=True):
    """What the probes of a node see of its live ranks. For the hang rule; never on record."""

    node: str
    generation: int
    signals: tuple[Signals, ...]


class HangSuspected(_Event, frozen=True, kw_only=True):
    """The hang rule says that the job stands still."""

    generation: int
    ranks: tuple[int, ...]  # silent by their own signals: culprit and victims alike
    since: float  # last sign of progress
    window_s: float  # longest silence that would have been usual
    why: str
    silent: dict[int, str] = {}  # rank -> its own sentence


class EvidenceCollected(_Event, frozen=True, kw_only=True):
    """A node's answer to `CollectEvidence`. The evidence itself is in files."""

    node: str
    generation: int
    incident: str
    gathered: tuple[Gathered, ...]
    took_s: float


class Diagnosed(_Event, frozen=True, kw_only=True):
    """What the collected evidence says. Answers `Diagnose`."""

    generation: int
    incident: str
    verdict: Verdict
    moved_on: bool = False  # every rank has done a step since the suspicion


class WorkerExited(_Event, frozen=True, kw_only=True):
    """A worker ended by itself (also with success). Ends that we caused come in `WorkersStopped`."""

    node: str
    generation: int
    exit: Exit
    account: RankAccount | None = None


class WorkersStopped(_Event, frozen=True, kw_only=True):
    """No worker of this generation is alive on this node any more. Answers `StopWorkers`."""

    node: str
    generation: int
    exits: tuple[Exit, ...] = ()
    accounts: tuple[RankAccount, ...] = ()
    held: tuple[Held, ...] = ()
    num_killed: int = 0  # needed SIGKILL after the grace period


class SnapshotsRefused(_Event, frozen=True, kw_only=True):
    """A rank asked for snapshot memory and did not get it; it trains on without."""

    node: str
    rank: int
    generation: int
    needed_bytes: int
    free_bytes: int | None
    why: str


class RuntimeFaulted(_Event, frozen=True, kw_only=True):
    """Something of ours inside a worker failed and was swallowed; training went on."""

    node: str
    rank: int
    generation: int
    where: str
    why: str


class TimerFired(_Event, frozen=True, kw_only=True):
    key: str


class StopRequested(_Event, frozen=True, kw_only=True):
    why: str  # "SIGINT", "SIGTERM"
    signal: int


class DrillRequested(_Event, frozen=True, kw_only=True):
    """Somebody asked for a fault to be injected."""

    drill: str  # id: d1, d2, ...
    kind: str  # one of core.drills
    rank: int | None = None
    node: str | None = None


class EvidenceRequested(_Event, frozen=True, kw_only=True):
    """Somebody wants to know what all ranks are doing (`everstep doctor`)."""

    request: str  # e41: stands where an incident's id stands in CollectEvidence and EvidenceCollected


class DrillFailed(_Event, frozen=True, kw_only=True):
    drill: str
    why: str


class ProposalApproved(_Event, frozen=True, kw_only=True):
    incident: str
    by: str = ""


Event: TypeAlias = (
    RunStarted
    | RunReopened
    | ControllerStarted
    | NodeJoined
    | NodeLost
    | NodeRefused
    | StoreOpened
    | TemplateReported
    | WorkersStarted
    | WorkersFailedToStart
    | MarksReported
    | ProgressReported
    | SignalsReported
    | HangSuspected
    | EvidenceCollected
    | Diagnosed
    | WorkerExited
    | WorkersStopped
    | SnapshotsRefused
    | RuntimeFaulted
    | TimerFired
    | StopRequested
    | DrillRequested
    | EvidenceRequested
    | DrillFailed
    | ProposalApproved
)
