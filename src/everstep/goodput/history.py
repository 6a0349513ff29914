"""Input of the accounting: what it needs to know of a run, as plain values. `journal.history` makes one from a
journal."""

import enum

import msgspec

from everstep.model.facts import RankAccount


class EndKind(enum.StrEnum):
    FAULT = "fault"  # an incident ended it
    DONE = "done"  # every rank ended by itself, with success
    STOPPED = "stopped"  # on request
    UPDATED = "updated"  # for another version of the program, or more nodes, which the next one runs with
    CUT = "cut"  # everything ended at once, launcher and journal included


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """How a generation ended. For a fault the three times are in order; for others all are `at`."""

    kind: EndKind
    at: float  # the fault itself, as well as is known
    detected_at: float
    decided_at: float
    incident: str | None = None
    unseen_ranks: frozenset[int] = frozenset()  # their agent was lost: nothing is known after their last step


class GenerationHistory(msgspec.Struct, frozen=True, kw_only=True):
    formed_at: float | None = None  # its start was decided: every slot had a node
    spawned: dict[int, float] = {}
    accounts: dict[int, RankAccount] = {}
    done_at: dict[int, float] = {}  # ranks that ended by themselves with success, before the generation's end
    resumed_step: int | None = None  # index of its first step by the job's own count; None: not known
    ending: Ending | None = None  # None: it runs


class History(msgspec.Struct, frozen=True, kw_only=True):
    """`until` is the end of the run, or the time of asking."""

    begun_at: float
    until: float
    world_size: int
    generations: tuple[GenerationHistory, ...] = ()
    is_over: bool = False
    has_runtime: bool = True  # False for `--no-python`: nothing of ours inside can report
    gaps: tuple[tuple[float, float], ...] = ()  # nothing ran in them, and nothing watched

    @property
    def reports_steps(self) -> bool:
        return any(a.first_step is not None for g in self.generations for a in g.accounts.values())
