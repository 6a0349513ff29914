"""Facts that agents report: of a rank (how it ended, where its seconds went), of a node, of alerts and checkpoints.

Every time is wall-clock seconds since the epoch, taken by the agent of that rank (or by the rank itself on the
same machine). `None` is "unknown" and never zero.
"""

import enum

import msgspec


class ExamKind(enum.StrEnum):
    """Examinations that nodes run when a fault has no culprit and the job stands still."""

    SELF = "self"  # the node's own test; its group is itself
    ALL_TO_ALL = "all-to-all"  # between the ranks of one node
    ALL_GATHER = "all-gather"  # with one neighbour
    ALIGNMENT = "alignment"  # a small model of the job's layout, one step from fixed weights: all digests are equal
    REPLAY = "replay"  # the same for many steps and rounds, over a group of machines


class ErrorReport(msgspec.Struct, frozen=True, kw_only=True):
    """A rank's own report of its end, from TORCHELASTIC_ERROR_FILE or from our exception hook."""

    kind: str  # exception class, "KeyError"
    message: str
    traceback: str = ""
    at: float | None = None
    place: str = ""  # "train.py:212", the innermost frame that is the user's own file


class OomEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """Why a SIGKILL is believed to be the kernel's out-of-memory killer."""

    source: str  # "cgroup memory.oom_control oom_kill 3 -> 4", or "kernel log"
    line: str = ""


class Exit(msgspec.Struct, frozen=True, kw_only=True):
    """How a worker process ended. Exactly one of `code`, `signal` is set, or neither if it is unknown."""

    rank: int
    at: float
    code: int | None = None
    signal: int | None = None
    error: ErrorReport | None = None
    place: str = ""  # where it ended itself: the innermost frame of the user's below sys.exit in its main thread
    oom: OomEvidence | None = None
    stopped_by_us: bool = False  # it got our SIGTERM or SIGKILL first; its exit says nothing about a fault
    finding: "Alert | None" = None  # what its last output and its report mean, if that is known
    last_output: str = ""  # what it wrote to stderr in its last seconds or since its last step, at most 2 KiB
    left_behind: str = ""  # it did not end on SIGKILL and is not waited for: which process it is and what holds it

    @property
    def succeeded(self) -> bool:
        return self.code == 0


class RankNote(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Why a rank that makes no progress is left alone: it says so, or its program is over."""

    kind: str  # "busy": it says so. "ending": its program is over, and its process has not ended
    says: str = ""  # busy: why. ending: where it is, as "train.py:88 upload". Empty: not known
    since: float


class RankAccount(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One rank's life in one generation, cumulative. Marks that were not reached are None.

    Order in time: spawned <= entered <= rendezvous_begun <= rendezvous_done <= loop_at <= last_step_at <= finished_at
    <= ended_at.
    """

    rank: int
    spawned_at: float
    entered_at: float | None = None  # the user's program began
    rendezvous_begun_at: float | None = None  # init_process_group called
    rendezvous_done_at: float | None = None  # ... returned
    restore_s: float = 0.0  # seconds in State's restore, within initialisation
    loop_at: float | None = None  # first step began
    first_step: int | None = None  # index of the first step done in this generation
    last_step: int | None = None  # index of the last step done
    first_step_at: float | None = None  # first step done
    last_step_at: float | None = None  # last step done
    stall_s: float = 0.0  # seconds in which the training thread waited for snapshots
    published_step: int | None = None  # newest step whose snapshot is complete
    finished_at: float | None = None  # the program's last line was over, and no traceback was printed
    ended_at: float | None = None
    backed_up_step: int | None = None  # newest step of which another node holds a complete copy
    counts_own_steps: bool = False  # steps come from everstep.State / everstep.step, so indices are the job's own
    communicated_at: float | None = None  # a collective moved last
    note: RankNote | None = None

    @property
    def num_steps(self) -> int:
        if self.first_step is None or self.last_step is None:
            return 0
        return self.last_step - self.first_step + 1


class Started(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A worker process exists."""

    rank: int
    pid: int
    how: str  # "twin" | "fresh" | "command"; before 0.2 also "template"
    why: str = ""  # where its twin was left, or why it has none
    at: float


class Signals(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One look at one live rank, for the hang rule. Ages in seconds at the time of the report; None is unknown."""

    rank: int
    phase: str  # value of analyzer.hangs.signals.Phase
    log_s: float | None = None
    stack_s: float | None = None
    device_s: float | None = None
    communication_s: float | None = None
    log_gap_s: float | None = None  # longest silence of its log so far
    evaluation_s: float | None = None  # how long its last complete evaluation took
    checkpoint_s: float | None = None  # ... and its last save
    paused: bool = False  # a debugger holds it
    busy: str = ""  # "says that it is busy: uploading"; empty: it does not, or for longer than it meant to be
    is_over: bool = False  # its program is over, and its process has not ended
    looking: bool = False  # a stack was asked for and has not come: judging now would be judging without it
    has_snapshot: bool = False  # a restart would lose nothing
    last_step: int | None = None
    last_step_at: float | None = None
    state: str = ""  # letter of /proc/PID/stat
    waits_on: str = ""  # value of analyzer.hangs.signals.WaitsOn
    waits_for: str = ""  # "waits for a socket"
    wait_left_s: float | None = None  # until its timer ends
    place: str = ""  # where its main thread stands, as "train.py:88 upload"; empty: it was not looked at


class NumberPoint(msgspec.Struct, frozen=True, kw_only=True):
    """A rank's own numbers for one step, from `everstep.step` or from a line of its log. None: not reported."""

    step: int | None = None
    loss: float | None = None
    grad_norm: float | None = None
    step_s: float | None = None
    skipped: bool = False  # the framework skipped the update, as loss scaling does


class LossPoint(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A loss as it is kept on record."""

    at: float
    step: int | None
    loss: float | None  # None: it was NaN or infinite, which JSON has no word for


class RankNumbers(msgspec.Struct, frozen=True, kw_only=True):
    """New points of one rank, oldest first."""

    rank: int
    source: str  # "step" for everstep.step, "log"
    points: tuple[NumberPoint, ...]


class RankDigest(msgspec.Struct, frozen=True, kw_only=True):
    """Digests of the parameters that one rank held after a step.

    `values`: name of a parameter, or of a range of them, to its digest. `replicas`: ranks that should hold the same;
    empty if none are declared. With a `stride` these are the first and the last of them: ten thousand ranks must not
    name each other one by one."""

    rank: int
    step: int
    values: dict[str, str]
    replicas: tuple[int, ...] = ()
    stride: int = 0
    missing: str = ""  # why there is no digest, or not of all parameters


class RankCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of one rank in each loop step, as runs of (first step, number of steps, optimizer steps, collectives),
    oldest first. Collectives are -1 where they are not counted."""

    rank: int
    runs: tuple[tuple[int, int, int, int], ...]


class Taken(msgspec.Struct, frozen=True):
    """A process that is not the run's and may run on some CPUs only, which had one while a rank was ready to run."""

    pid: int
    name: str
    share: float  # of the rank's time


class RankRound(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's part in a round of the fail-slow vote. Cumulative seconds and work are since the round before; None
    is not measured. `arrivals`: (index into `kinds`, sequence number, wall-clock seconds) of the collectives that it
    entered last, oldest first."""

    rank: int
    num_steps: int
    window_s: float
    num_entered: int = 0  # collectives since the round before; `arrivals` are the newest of them
    kinds: tuple[tuple[str, str], ...] = ()  # group name, and operation with its size: "all_reduce [16640]"
    arrivals: tuple[tuple[int, int, float], ...] = ()
    groups: dict[str, tuple[int, ...]] = {}  # group name -> ranks, as far as declared
    titles: dict[str, str] = {}  # group name -> what it was called, "mesh_tp"
    data_s: float | None = None
    gc_s: float | None = None
    delay_s: float | None = None  # runnable, and waited for a CPU
    throttled_s: float | None = None  # stopped by the CPU quota of its cgroup
    io_s: float | None = None  # in uninterruptible sleep: a disk, or a server of files
    cpu_s: float | None = None  # of the training thread; None as well where a device computes for it
    rivals: str = ""  # which processes run on its CPU while it waits for one, in words
    # seconds in which its data was on its way to another machine, on the connection where it took longest
    send_s: float | None = None
    send_share: float | None = None  # of the time since the look before, also in a round without a step
    sent: str = ""  # to which peer and how fast, in words
    lost: int | None = None  # segments that it sent again on that connection
    unread: str = ""  # which peers have no room for what it sends, in words
    kernel: tuple[str, ...] = ()  # why its threads did not run, as the kernel saw it (eBPF), in words
    takers: tuple[Taken, ...] | None = None  # of its training thread's CPU; None: not looked at
    held: dict[str, float] | None = None  # kind of sleep of its training thread -> share of its time (eBPF)
    work: float | None = None  # tokens, or elements of the batches
    missing: str = ""  # why there are no arrivals


DRAINED = "ES-M39"
"""Code of the alert, and of the verdict, of a requested drain: it was not diagnosed."""


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    """Something that a node noticed about itself, classified; see `knowledge` for codes."""

    at: float
    code: str
    sentence: str
    component: str
    blame: str  # value of verdict.Blame
    severity: str  # "fault": replace | "error": restart or drain | "warning": on record only
    action: str  # value of knowledge.signature.Action
    role: str = "root"  # "root" | "cascade" | "either"
    source: str = ""  # "kernel log", "nvml", "rank 3 stderr", ...
    line: str = ""
    device: str = ""  # "gpu 3", "mlx5_0/1", "sda"
    rank: int | None = None
    count: int = 1  # times it was seen since the last report of it


class Gathered(msgspec.Struct, frozen=True, kw_only=True):
    """Evidence collected from one rank: the file that holds it, and the parts that were unavailable."""

    rank: int
    file: str  # below the run directory
    has: tuple[str, ...] = ()  # "states", "stack", "flight record"
    unavailable: tuple[str, ...] = ()


class Held(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Complete snapshots that a node holds in memory for one rank."""

    rank: int
    steps: tuple[int, ...]
    generations: tuple[int, ...] = ()  # in the order of `steps`: which generation wrote each; empty: not reported
    world_size: int = 0  # of the generations that wrote them; 0: as many ranks as there are now


class Fetch(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot that a node needs and another one holds."""

    rank: int
    step: int
    node: str  # the node that holds it
    endpoint: str  # "host:port" of that node's snapshot server


class Backup(msgspec.Struct, frozen=True, kw_only=True):
    """Where the snapshots of a rank are copied to."""

    rank: int
    node: str
    endpoint: str


class Neighbour(msgspec.Struct, frozen=True, kw_only=True):
    """Another node of the run, whose link to this one is watched."""

    node: str
    address: str  # "host:port": probes over UDP go to the port that its snapshot server has over TCP


class LinkState(enum.StrEnum):
    """State of the network between two nodes, as one of them sees it."""

    UNKNOWN = "unknown"  # nothing was ever answered, so silence proves nothing
    GOOD = "good"
    LOSSY = "lossy"
    PARTIAL = "partial"  # probes of some source ports are lost, those of others come through
    DEAD = "dead"


class LinkSeen(msgspec.Struct, frozen=True, kw_only=True):
    """A node's current view of its link to another node."""

    to: str
    state: LinkState
    for_s: float = 0.0  # since when
    sent: int = 0  # lately
    lost: int = 0  # of these
    hears: bool = False  # the other one's probes come: what is dead is the way there
    ports: int = 0  # source ports
    dead_ports: int = 0


class PortSeen(msgspec.Struct, frozen=True, kw_only=True):
    """Recent counters of one network port of a node, or of its TCP, that suggest trouble. For evidence."""

    nic: str  # "eth0", "mlx5_0/1", "tcp"
    seconds: float
    grown: dict[str, int] = {}  # counters that grew, and by how much
    unknown: tuple[str, ...] = ()  # went back, wrapped or vanished meanwhile


class RankGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Ranks that work together in one parallel dimension, and may be evicted together."""

    title: str  # "mesh_tp", or the process group's name
    ranks: tuple[int, ...]


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A whole, committed copy of a step in the persistent tier."""

    step: int
    path: str  # folder or URL of this step
    world_size: int
    at: float
    is_trusted: bool = False  # a corruption check that ran after it passed
    size_bytes: int | None = None
