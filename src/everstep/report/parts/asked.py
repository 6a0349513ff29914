"""When a person asked, and whether a controller answered: the few facts about now that the journal cannot hold."""

import msgspec

from everstep.journal.view import RunView


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    at: float
    controller_pid: int | None  # None: no controller has the run; 0: one has, its id is unknown
    controller: str = ""  # of a run over several hosts: where it is, and who would take over

    @property
    def has_controller(self) -> bool:
        return self.controller_pid is not None

    def as_of(self, view: RunView) -> float:
        """Now for a live run; the last record for one that is over or whose controller is gone."""
        last_at = view.last_at if view.last_at is not None else self.at
        return max(self.at, last_at) if self.has_controller and not view.is_over else last_at

    def is_gone(self, view: RunView) -> bool:
        """It did not end, and controller not running."""
        return not self.has_controller and not view.is_over
