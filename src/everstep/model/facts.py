"""Facts about one rank: how it ended, and where its seconds went.

Every time is wall-clock seconds since the epoch, taken by the agent of that rank (or by the rank itself on the
same machine). `None` is "unknown" and never zero.
"""

import msgspec


class ErrorReport(msgspec.Struct, frozen=True, kw_only=True):
    """What the rank itself said of its end: TORCHELASTIC_ERROR_FILE, or our own exception hook."""

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
    """How a worker process ended. Exactly one of `code`, `signal` is set, or neither if nobody could tell."""

    rank: int
    at: float
    code: int | None = None
    signal: int | None = None
    error: ErrorReport | None = None
    oom: OomEvidence | None = None
    stopped_by_us: bool = False  # it got our SIGTERM or SIGKILL first; its exit says nothing about a fault
    last_output: str = ""  # last lines of stderr, at most 2 KiB, for ends that left no report

    @property
    def succeeded(self) -> bool:
        return self.code == 0


class RankAccount(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's life in one generation, cumulative. Marks that were not reached are None.

    Order in time: spawned <= entered <= rendezvous_begun <= rendezvous_done <= loop_at <= last_step_at <= ended_at.
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
    ended_at: float | None = None
    counts_own_steps: bool = False  # steps come from everstep.State / everstep.step, so indices are the job's own

    @property
    def num_steps(self) -> int:
        if self.first_step is None or self.last_step is None:
            return 0
        return self.last_step - self.first_step + 1


class Started(msgspec.Struct, frozen=True, kw_only=True):
    """A worker process exists."""

    rank: int
    pid: int
    how: str  # "template" | "fresh" | "command"
    why: str = ""  # why not from the template, when it was not
    at: float


class Signals(msgspec.Struct, frozen=True, kw_only=True):
    """One look at one live rank, for the hang rule. Ages in seconds at the time of the report; None is unknown."""

    rank: int
    phase: str  # value of analyzer.signals.Phase
    log_s: float | None = None
    stack_s: float | None = None
    device_s: float | None = None
    communication_s: float | None = None
    log_gap_s: float | None = None  # longest silence of its log so far
    paused: bool = False  # a debugger holds it
    looking: bool = False  # a stack was asked for and has not come: judging now would be judging without it
    has_snapshot: bool = False  # a restart would lose nothing
    last_step: int | None = None
    last_step_at: float | None = None
    state: str = ""  # letter of /proc/PID/stat


class Gathered(msgspec.Struct, frozen=True, kw_only=True):
    """What was collected of one rank: where it is, and what of it could not be had."""

    rank: int
    file: str  # below the run directory
    has: tuple[str, ...] = ()  # "states", "stack", "flight record"
    unavailable: tuple[str, ...] = ()


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """Complete snapshots that a node holds in memory for one rank."""

    rank: int
    steps: tuple[int, ...]
