"""What a signature is: one known wording of a fault, and what is known about it.

Values only. Loaded from TOML by `loading`, compiled by `engine`, printed by `pages`. Must not know how to match.
"""

import enum
from dataclasses import dataclass

from everstep.model.verdict import Blame


class Role(enum.StrEnum):
    """Where a line stands between cause and consequence."""

    ROOT = "root"  # names a cause
    EITHER = "either"  # a cause unless something stronger stands beside it
    CASCADE = "cascade"  # only ever a consequence
    RECOVERY = "recovery"  # something is well again, or a harmless line that looks like trouble
    UNKNOWN = "unknown"  # caught by family; for review, never acted upon


class Severity(enum.StrEnum):
    """Two tiers as Baige has them, and what is worth no action."""

    INFO = "info"
    ERROR = "error"  # restart, or drain and restart
    FAULT = "fault"  # replace


class Action(enum.StrEnum):
    """The closed list of what can be suggested. `acts` tells a suggestion to do something from one to know."""

    IGNORE = "IGNORE"
    MONITOR = "MONITOR"
    FIND_ROOT = "FIND_ROOT"  # a consequence: look for what came before
    REVIEW = "REVIEW"  # unknown: a person should read it
    RESTART_IN_PLACE = "RESTART_IN_PLACE"
    RESET_GPU = "RESET_GPU"  # drain the node, reset the accelerator
    DRAIN_AND_RESTART_NODE = "DRAIN_AND_RESTART_NODE"
    REBOOT_NODE = "REBOOT_NODE"
    REPLACE_NODE = "REPLACE_NODE"
    # another machine or a program blames this machine, and the machine itself reports nothing
    CHECK_NODE = "CHECK_NODE"
    CHECK_USER_CODE = "CHECK_USER_CODE"
    CHECK_ENVIRONMENT = "CHECK_ENVIRONMENT"
    CHECK_NETWORK = "CHECK_NETWORK"
    CHECK_STORAGE = "CHECK_STORAGE"
    CHECK_SCHEDULER = "CHECK_SCHEDULER"

    @property
    def acts(self) -> bool:
        return self not in PASSIVE


PASSIVE = frozenset({Action.IGNORE, Action.MONITOR, Action.FIND_ROOT, Action.REVIEW})

GENERIC = 20
"""A specificity up to here is a catch-all: it never wins against a signature that knows more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """One kind of line. Several signatures may share a class; a code belongs to exactly one."""

    code: str  # stable for ever: "ES-G79"
    klass: str  # the kind of fault: "gpu_fallen_off_bus"
    component: str
    title: str
    patterns: tuple[str, ...]  # RE2; "^" is the start of the message, after time stamps and rank tags
    role: Role
    blame: Blame
    severity: Severity
    action: Action
    meaning: str
    confirm: str
    do: str = ""  # what a person should do, where the action's own words do not fit the fault
    specificity: int = 50  # of several that match one line the highest is reported
    negatives: tuple[str, ...] = ()  # a line that matches one of these is not this fault
    context: str = ""  # "error": only on lines about an error, or inside a traceback
    any_level: bool = False  # counts also on lines that a program logged as information
    recovers: tuple[str, ...] = ()  # codes that this line cancels
    after: tuple[str, ...] = ()  # codes beside which this one is a consequence
    family: str = ""  # set on catch-alls for unknown lines: their queue's name
    probe: bool = False  # also printed by a program that tries out whether it has something optional, and continues
    screened: bool = True  # False: explains lines that another signature finds, finds none itself
    origin: str = ""  # file and line it was read from

    @property
    def is_unknown(self) -> bool:
        return self.role is Role.UNKNOWN
