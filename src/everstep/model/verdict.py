"""Verdicts and decisions: what is believed about a fault, and what was chosen because of it."""

import enum

import msgspec


class Blame(enum.StrEnum):
    USER = "user"
    MACHINE = "machine"
    NETWORK = "network"
    STORAGE = "storage"
    ENVIRONMENT = "environment"  # limits of the container or the host: /dev/shm, memlock, threads, read-only mounts
    SCHEDULER = "scheduler"
    OPERATOR = "operator"  # ended or stopped by hand, or with a tool: Ctrl-C, kill, scancel
    UNKNOWN = "unknown"


DRAIN_RULE = "drain"
"""Marks a decision that an operator asked for: it counts neither as a restart nor as an eviction."""


class Confidence(enum.StrEnum):
    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


class Certainty(enum.StrEnum):
    """Whether a hang could end by itself. The price of a mistake decides what follows (core/run/standstill.py)."""

    UNSTATED = ""  # no hang, or of an older everstep
    CERTAIN = "certain"  # nothing can release it: acted on within seconds
    DOUBTFUL = "doubtful"  # a process could still answer, or something still works


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """One observed thing that supports a verdict."""

    at: float
    source: str  # "exit status", "error report", "cgroup", "link", ...
    says: str  # one sentence
    rank: int | None = None
    node: str | None = None
    detail: str = ""  # traceback, kernel line: shown on demand


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """A diagnosis. `sentence` is the whole verdict for a reader in a hurry."""

    code: str  # stable: "ES-P09"
    sentence: str
    blame: Blame
    confidence: Confidence
    ranks: tuple[int, ...] = ()  # suspects, most suspect first
    node: str | None = None
    at: float  # when the fault happened, as well as is known
    group: str = ""  # the parallel group that all suspects share, or in which it was seen: "mesh_tp"
    group_ranks: tuple[int, ...] = ()
    action: str = ""  # what its signature suggests, of the closed list in `knowledge`; empty: nothing of its own
    place: str = ""  # for faults of the user's code: file and line. Same place again means same fault
    certainty: Certainty = Certainty.UNSTATED
    because: str = ""  # what makes a hang certain or doubtful: "rank 0 waits for a socket: somebody could still answer"
    computes: bool = False  # a doubtful one: something works, it does not only wait
    evidence: tuple[Evidence, ...] = ()


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """Something that could have been done and was not."""

    what: str
    why: str


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """A choice, the rule that made it, and the alternatives that were refused."""

    chosen: str  # "restart all ranks in place as generation 3"
    rule: str  # stable name of the rule: "restart-in-place"
    why: str
    refused: tuple[Refusal, ...] = ()
    then: str = ""  # what is done next if this does not help; empty: nothing that is known already
    act_at: float | None = None  # when what is chosen is done, if it waits
