"""The timers of the brain: a kind, and its subject (a generation, an incident, a request, a version).

In the journal a timer is its key: the kind, then the subject behind a colon. A kind therefore keeps its value for ever.
`core.step` maps each kind to its handler.
"""

import enum
from typing import NamedTuple


class TimerKind(enum.StrEnum):
    NODE = "node"
    STANDBY = "standby:again"
    BACKOFF = "backoff"
    START = "start"
    RENDEZVOUS = "rendezvous"
    LATE = "late"
    RECOVERED = "recovered"
    SETTLE = "settle"
    EVIDENCE = "evidence"
    DIAGNOSIS = "diagnosis"
    ACT = "act"
    EVICT = "evict"
    EXAM = "exam"
    APPROVAL = "approval"
    UPDATE_CHECK = "update:check"
    UPDATE_DUE = "update:due"
    SHRINK = "shrink"
    GROW = "grow"
    LEAST = "least"
    PERSIST_NEXT = "persist:next"
    PERSIST_LIMIT = "persist:limit"


MEANINGS: dict[TimerKind, tuple[str, str]] = {
    TimerKind.NODE: ("request", "the engine has to give a node by then"),
    TimerKind.STANDBY: ("", "ask again for a standby that the engine refused"),
    TimerKind.BACKOFF: ("generation to come", "it is formed then"),
    TimerKind.START: ("generation", "every rank has reached the program by then"),
    TimerKind.RENDEZVOUS: ("generation", "every rank is out of init_process_group by then"),
    TimerKind.LATE: ("generation", "ranks that have not called it by then are named"),
    TimerKind.RECOVERED: ("generation", "it has lived long enough to count as recovered"),
    TimerKind.SETTLE: ("generation", "the rank that caused the fault has exited by then"),
    TimerKind.EVIDENCE: ("incident", "the evidence of a hang has come by then"),
    TimerKind.DIAGNOSIS: ("incident", "its diagnosis has come by then"),
    TimerKind.ACT: ("incident", "the job has stood still for long enough"),
    TimerKind.EVICT: ("incident", "the engine has ended the suspected nodes by then"),
    TimerKind.EXAM: ("exam", "every node has answered by then"),
    TimerKind.APPROVAL: ("incident", "the proposal is approved by then"),
    TimerKind.UPDATE_CHECK: ("version", "a node has said by then whether it can start"),
    TimerKind.UPDATE_DUE: ("version", "it waits for an interruption no longer"),
    TimerKind.SHRINK: ("generation to come", "missing nodes are waited for no longer"),
    TimerKind.LEAST: ("generation to come", "as many nodes as the job needs are there by then"),
    TimerKind.GROW: ("generation", "nodes that came are taken in"),
    TimerKind.PERSIST_NEXT: ("", "the next step is due in the persistent tier"),
    TimerKind.PERSIST_LIMIT: ("", "the step that is on its way has arrived by then"),
}
"""The subject, and what is due."""

LASTING = (TimerKind.NODE, TimerKind.STANDBY, TimerKind.UPDATE_CHECK, TimerKind.UPDATE_DUE)
"""These outlive a generation. All others are about it, or about what stopped it."""


class Timer(NamedTuple):
    kind: TimerKind
    subject: str = ""

    @property
    def key(self) -> str:
        return f"{self.kind.value}:{self.subject}" if self.subject else self.kind.value

    @classmethod
    def of_generation(cls, kind: TimerKind, generation: int) -> "Timer":
        return cls(kind, str(generation))


def timer_of(key: str) -> Timer | None:
    """The timer with this key; None for a key that this version does not know. Never raises."""
    for kind in TimerKind:
        if key == kind.value:
            return Timer(kind)
        if key.startswith(f"{kind.value}:"):
            return Timer(kind, key[len(kind.value) + 1 :])
    return None
