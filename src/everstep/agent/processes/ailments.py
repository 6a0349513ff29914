"""Faults that drills have given this machine: every process on it has them from now on, ranks and examinations alike,
until the machine is given back. Only the agent knows them; diagnosis must not.
"""

from typing import Any

from everstep.model.actions import Inject

_FIRST = 0
"""Local rank: one device of the machine is broken, not all of them."""


class Ailments:
    """One per agent."""

    def __init__(self) -> None:
        self._by_kind: dict[str, Inject] = {}
        self._num_processes = 0

    def add(self, action: Inject) -> None:
        """A later one of the same kind takes its place."""
        self._by_kind[action.kind] = action

    def of_process(self, local_rank: int) -> list[dict[str, Any]]:
        """Drill requests for a process that is about to start, or runs: they are armed before its program begins. The
        same machine with the same seed goes wrong in the same steps of its first, second, third process."""
        if local_rank != _FIRST or not self._by_kind:
            return []
        self._num_processes += 1
        return [
            {"kind": kind, "id": each.drill, "options": {**each.options, "process": self._num_processes}}
            for kind, each in self._by_kind.items()
        ]
