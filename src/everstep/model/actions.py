"""Actions: imperatives for the shell, the only output of `core.step` beside the state. Each carries its `why`.

Some change the world (StartWorkers), some only put a decision on record (Concluded, Refused, IncidentClosed): the
shell has nothing to do for those, the folds of the journal live on them.
"""

from typing import TypeAlias

import msgspec

from everstep.model.facts import Backup, ExamKind, Fetch, Neighbour
from everstep.model.spec import Count
from everstep.model.verdict import Decision, Verdict
from everstep.model.versions import Stage, Version


class _Action(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag=True):
    why: str


class OpenStore(_Action, frozen=True, kw_only=True):
    """Launcher: make a key-value store for this generation and answer StoreOpened."""

    generation: int


class AcquireNode(_Action, frozen=True, kw_only=True):
    """Engine: give one more node. It answers by joining, or with NodeRefused. Idempotent under `request`."""

    request: str
    is_urgent: bool = True  # False: a standby for the next fault; on a shared machine its start must not slow this one


class ReleaseNode(_Action, frozen=True, kw_only=True):
    """Engine: take the node back and make sure that nothing of it runs on."""

    node: str


class EvictNode(_Action, frozen=True, kw_only=True):
    """Engine: end the node now, with its workers, because it is suspected. Answered by NodeLost, with the snapshots
    that outlived it. Idempotent. Its machine is not used again, but where nothing is held against it: nothing was heard
    of it (`is_silent`), or a drill hurt it (`is_drill`). `may_spare`: one that lives and is only late does not end;
    then the answer is NodeSpared."""

    node: str
    is_silent: bool = False
    is_drill: bool = False
    may_spare: bool = False


class SettleDoubt(_Action, frozen=True, kw_only=True):
    """Agent: whether its ranks may continue; if not, it ends. Answers the NodeInDoubt of that number."""

    node: str
    number: int
    may_go_on: bool


class StartWorkers(_Action, frozen=True, kw_only=True):
    """Agent: start this generation's ranks. Answered by WorkersStarted; idempotent under `generation`."""

    node: str
    generation: int
    slot: int
    first_rank: Count
    num_ranks: Count
    world_size: Count
    num_slots: Count
    store_host: str
    store_port: int
    resume_step: int | None  # newest step that every rank can have; None: nothing to restore
    fetch: tuple[Fetch, ...] = ()  # snapshots of this node's ranks that lie on other nodes: get them first
    former_world: int = 0  # `fetch` is of all ranks of a generation of so many: the state is spread anew; 0: it is not
    restore_path: str = ""  # the step is restored from this checkpoint in the persistent tier
    no_snapshots: str = ""  # ranks keep none, because of this
    version: Version | None = None  # what the ranks run; None: what the run was started with, where the user has it
    neighbours: tuple[Neighbour, ...] = ()  # on several hosts: nodes whose links to this one are watched


class StopWorkers(_Action, frozen=True, kw_only=True):
    """Agent: end this generation's ranks: `signal`, after `grace_s` SIGKILL. Answered by WorkersStopped."""

    node: str
    generation: int
    grace_s: float
    signal: int = 15  # SIGTERM, or what the launcher got
    save_s: float = 0.0  # before SIGTERM, ranks that live get so long to complete the snapshot of their last step
    after_step: int | None = None  # a step to come, after which all ranks end: first they get `after_s` to do it
    after_s: float = 0.0


class PlaceBackups(_Action, frozen=True, kw_only=True):
    """Agent: copy the snapshots of these ranks to these nodes from now on, the newest complete one whenever the copy
    before has arrived. Replaces what was placed before; fenced by the generation."""

    node: str
    generation: int
    backups: tuple[Backup, ...]


class TrustStep(_Action, frozen=True, kw_only=True):
    """Agent: the snapshots of this step are trusted; keep them until a newer step is."""

    node: str
    generation: int
    step: int


class PersistSnapshot(_Action, frozen=True, kw_only=True):
    """Agent: write its ranks' part of this step, which may be still to come, to the persistent tier at `root`.
    Answered by SnapshotPersisted within `limit_s`."""

    node: str
    generation: int
    step: int
    ranks: tuple[int, ...]
    world_size: int
    root: str
    limit_s: float
    is_last: bool = False  # the ranks have ended, and the run ends when it is there


class CommitCheckpoint(_Action, frozen=True, kw_only=True):
    """Agent: every node's part is there; check that, make the step visible, and apply retention. Answered by
    CheckpointCommitted."""

    node: str
    step: int
    world_size: int
    root: str
    keep: int  # newest steps that stay; the newest trusted one stays besides
    is_trusted: bool
    generation: int | None = None  # the one that commits: those before it make no checkpoint any more; None: not given
    resumed: tuple[tuple[int, int], ...] = ()  # generations up to it, and the steps after which they resumed


class StrikeCheckpoint(_Action, frozen=True, kw_only=True):
    """Agent: note beside this step in the persistent tier that it must not be restored, so that a later run which looks
    there is not offered it. Not answered: this run never takes it anyway. Idempotent."""

    node: str
    root: str
    step: int


class CollectEvidence(_Action, frozen=True, kw_only=True):
    """Agent: stacks, process states and flight records of its live ranks, into files. Answered by EvidenceCollected
    within `limit_s`, with what there is by then."""

    node: str
    generation: int
    incident: str
    limit_s: float


class TraceRank(_Action, frozen=True, kw_only=True):
    """Agent: record what this rank does for so long, into a file, while it trains. Answered by RankTraced, if it lives;
    never issued again. Whatever stops the ranks ends it."""

    node: str
    generation: int
    incident: str  # or a name of its own ("slow2"), where a slow rank was only excused
    rank: int
    seconds: float
    max_bytes: int


class Diagnose(_Action, frozen=True, kw_only=True):
    """Shell: let the analyzer judge the incident's evidence files. Answered by Diagnosed."""

    generation: int
    incident: str
    world_size: int


class ExamineNode(_Action, frozen=True, kw_only=True):
    """Agent: take part in an examination, while none of the job's ranks run. The nodes of a group meet in a store of
    their own (`store_host`, `store_port`, keys prefixed by `exam` and `group_index`). Answered by NodeExamined within
    `limit_s`; idempotent under `exam`; a newer one, or StartWorkers, ends it."""

    node: str
    generation: int  # the one that has ended
    exam: str  # "i3/1": of this incident, the first one
    kind: ExamKind
    group: tuple[str, ...]  # nodes that are examined together, in the order of their slots; this one is among them
    group_index: int
    num_ranks: Count  # per node
    store_host: str
    store_port: int
    limit_s: float
    shape: tuple[tuple[str, int], ...] = ()  # of the job's layout, outermost first: (("pp", 2), ("dp", 1), ("tp", 2))
    num_rounds: int = 1


class ValidateUpdate(_Action, frozen=True, kw_only=True):
    """Agent: look whether this version can start, in a process of its own. Answered by UpdateValidated within
    `limit_s`; idempotent under the version's id."""

    node: str
    version: Version
    can_start: bool  # no rank of the job runs on this node: the program may really be started
    limit_s: float


class UpdateConcluded(_Action, frozen=True, kw_only=True):
    """On record: what became of a version. The last one counts."""

    version: str
    stage: Stage
    back_to: str = ""  # rolled back: the version that runs instead


class Resized(_Action, frozen=True, kw_only=True):
    """On record: the coming generation has another number of nodes (`--nnodes MIN:MAX`). `why` says what for."""

    num_before: Count  # nodes
    num_slots: Count  # nodes, from the coming generation on
    world_size: Count
    nodes: tuple[str, ...]  # that hold the slots now, in their order
    waited_s: float = 0.0  # for the nodes that did not come, or for others to come as well


class SetTimer(_Action, frozen=True, kw_only=True):
    """Shell: feed TimerFired(key) at `due_at`. A timer that no longer matters is ignored when it fires."""

    key: str
    due_at: float


class Inject(_Action, frozen=True, kw_only=True):
    """Shell or agent: do the drill."""

    drill: str
    kind: str
    node: str | None = None
    rank: int | None = None
    generation: int = -1
    options: dict[str, float | str] = {}  # of the kind, checked by core.faults.drills


class IncidentOpened(_Action, frozen=True, kw_only=True):
    """On record: a disturbance began."""

    incident: str
    drill: str | None = None


class Concluded(_Action, frozen=True, kw_only=True):
    """On record: what is believed about the incident and what is done about it. The last one counts."""

    incident: str
    verdict: Verdict
    decision: Decision


class Refused(_Action, frozen=True, kw_only=True):
    """On record: something was asked for or would have been natural, and is not done."""

    what: str
    incident: str | None = None


NOT_TRUSTED = "go back to a trusted step"
"""What is refused where none can be had: from then on nothing is trusted."""


class IncidentClosed(_Action, frozen=True, kw_only=True):
    """On record: how it ended."""

    incident: str
    outcome: (
        str  # "recovered" | "gave-up" | "superseded" | "stopped" | "run-ended" | "dismissed" | "observed" | "passed"
    )
    recovered_at: float | None = None  # first new step of the slowest rank
    lost_steps: int | None = None  # completed steps that had to be done again; None: not measured
    resumed_step: int | None = None  # index of the first step done after the restart


class Finish(_Action, frozen=True, kw_only=True):
    """Launcher and agents: the run is over. Terminal."""

    outcome: str  # "succeeded" | "failed" | "gave-up" | "stopped"
    exit_code: int


Action: TypeAlias = (
    OpenStore
    | AcquireNode
    | ReleaseNode
    | EvictNode
    | SettleDoubt
    | StartWorkers
    | StopWorkers
    | PlaceBackups
    | TrustStep
    | PersistSnapshot
    | CommitCheckpoint
    | StrikeCheckpoint
    | CollectEvidence
    | TraceRank
    | Diagnose
    | ExamineNode
    | ValidateUpdate
    | UpdateConcluded
    | Resized
    | SetTimer
    | Inject
    | IncidentOpened
    | Concluded
    | Refused
    | IncidentClosed
    | Finish
)
