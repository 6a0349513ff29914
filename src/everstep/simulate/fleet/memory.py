"""Steps that the fleet's memory holds when a generation has ended: every rank's own, and copies on other nodes."""

from collections.abc import Sequence

from everstep.model.actions import PlaceBackups
from everstep.model.facts import Held
from everstep.simulate.fleet.pace import Pace
from everstep.simulate.fleet.setup import Setup


class Memory:
    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._copies_on: dict[str, list[int]] = {}  # node -> ranks of which it keeps copies
        self._fetching: set[str] = set()  # nodes that begin with another node's snapshot
        self._resumed: int | None = None

    def place(self, places: Sequence[PlaceBackups]) -> None:
        """The new placement of all ranks."""
        self._copies_on = {}
        for place in places:
            for backup in place.backups:
                self._copies_on.setdefault(backup.node, []).append(backup.rank)

    def start(self, generation: int, fetching: set[str], resume_step: int | None) -> None:
        self._fetching, self._resumed = fetching, resume_step
        if generation == 0:
            self._copies_on = {}

    def lose(self, node: str) -> None:
        self._copies_on.pop(node, None)

    def forget(self) -> None:
        """The run has ended, and its memory with it."""
        self._copies_on, self._fetching, self._resumed = {}, set(), None

    def shelf(self, pace: Pace, broken_at: float, trusted: int | None) -> "Shelf":
        if not self._setup.every_step:
            return Shelf((), (), self._copies_on, set())
        newest = pace.last_step(broken_at)
        copied = pace.last_step(broken_at - self._setup.costs.backup_s)
        newest = self._resumed if newest is None else newest
        copied = self._resumed if copied is None else copied
        without = self._fetching if broken_at < pace.begun_at else set()
        return Shelf(_steps(newest, copied, trusted), _steps(copied, trusted), self._copies_on, without)


class Shelf:
    """`without`: nodes that had not got their snapshot yet."""

    def __init__(
        self, own: tuple[int, ...], copied: tuple[int, ...], copies_on: dict[str, list[int]], without: set[str]
    ) -> None:
        self._own = own
        self._copied = copied
        self._copies_on = copies_on
        self._without = without

    def of(self, node: str, rank: int) -> tuple[tuple[Held, ...], tuple[Held, ...]]:
        """Return the snapshots that this node holds: those of its own rank, and those of others."""
        own = (Held(rank=rank, steps=self._own),) if self._own and node not in self._without else ()
        if not self._copied:
            return own, ()
        return own, tuple(Held(rank=other, steps=self._copied) for other in self._copies_on.get(node, ()))


def _steps(*steps: int | None) -> tuple[int, ...]:
    return tuple(sorted({step for step in steps if step is not None}))
