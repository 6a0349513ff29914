"""The contents of a fake cluster's memory and disks: the truth that decisions are checked against.

Every snapshot knows which generation took it, and the history records which generation's version of a step counts.
`start` does what agents and ranks do with a StartWorkers, and raises if a rank could not have the step.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from everstep.model.actions import StartWorkers
from everstep.model.facts import Checkpoint, Held

Place = str | tuple[str, int, int]
"""Path of a checkpoint; or node of a copy, empty for the rank's own memory, rank and step."""

OWN_BUFFERS = 3
COPY_BUFFERS = 2
"""Newest snapshots that are there besides the trusted one."""

Shelf = dict[int, dict[int, int]]
"""Rank -> step -> generation that took the snapshot."""


class ImpossibleStartError(AssertionError):
    """A generation was to start from something that is not there, or that is known to be bad."""


class Failed(msgspec.Struct, frozen=True):
    """A rank found its snapshot damaged, or could not read it."""

    rank: int
    step: int
    source: str
    where: str
    is_damaged: bool = True


class FakeMemory:
    def __init__(self, *, copies_lag: int | None = None) -> None:
        self.copies_lag = copies_lag  # so many steps a copy on another node is behind; None: there are none
        self.own: dict[str, Shelf] = {}
        self.copies: dict[str, Shelf] = {}
        self.former: dict[str, dict[tuple[int, int], dict[int, int]]] = {}  # node -> (ranks there were, rank) -> steps
        self.world_size = 0
        self.kept: Shelf = {}  # of nodes that are gone, whose memory is not
        self.disk: dict[str, Checkpoint] = {}
        self.trusted: int | None = None  # pinned everywhere
        self.backups: dict[int, str] = {}  # rank -> node of its copy
        self.damaged: set[Place] = set()
        self.unreadable: set[Place] = set()  # for now
        self._found_bad: dict[Place, int] = {}  # in which generation
        self._history: list[tuple[int, int]] = []  # generation, step that it went on from

    def complete(self, node: str, rank: int, step: int, generation: int) -> None:
        mine = self.own.setdefault(node, {}).setdefault(rank, {})
        mine[step] = generation
        self._forget(mine, OWN_BUFFERS)
        self._renew(("", rank, step))
        if self.copies_lag is not None and rank in self.backups:
            self._copy(rank, self.backups[rank], step - self.copies_lag)

    def commit(self, checkpoint: Checkpoint) -> None:
        self.disk.pop(checkpoint.path, None)  # in the order in which they were written
        self.disk[checkpoint.path] = checkpoint
        self._renew(checkpoint.path)

    def found(self) -> tuple[Checkpoint, ...]:
        """List the checkpoints that a look at the disk finds, oldest first: a step is left out if the job went back
        before it and has written others since."""
        written = list(self.disk.values())
        told = [c for i, c in enumerate(written) if all(later.step > c.step for later in written[i + 1 :])]
        return tuple(sorted(told, key=lambda each: each.step))

    def distrust(self, newest: int | None, generation: int) -> None:
        """Nothing on disk that is newer may be restored from now on, unless it passed a check itself."""
        for path, checkpoint in self.disk.items():
            if not checkpoint.is_trusted and (newest is None or checkpoint.step > newest):
                self._found_bad.setdefault(path, generation)

    def held(self, node: str, ranks: Iterable[int]) -> tuple[Held, ...]:
        return _told(self.own.get(node, {}), ranks)

    def held_copies(self, node: str) -> tuple[Held, ...]:
        told = _told(self.copies.get(node, {}), self.copies.get(node, {}))
        for (world_size, rank), steps in self.former.get(node, {}).items():
            told += tuple(msgspec.structs.replace(h, world_size=world_size) for h in _told({rank: steps}, [rank]))
        return told

    def lose(self, node: str, *, keep: bool) -> tuple[Held, ...]:
        """Lose a node, and return what outlives it: its own ranks' memory, if only the agent is gone."""
        own = self.own.pop(node, {})
        self.copies.pop(node, None)
        self.former.pop(node, None)
        for rank in own if keep else ():
            self.kept[rank] = own[rank]
        return _told(own, own) if keep else ()

    def best(self, node_of: Mapping[int, str]) -> int | None:
        """The newest step that every rank could have now, by looking at everything."""
        on_disk = {c.step for path, c in self.disk.items() if path not in self._found_bad}
        common = None
        for rank, node in node_of.items():
            mine = {**self.kept.get(rank, {}), **self.own.get(node, {}).get(rank, {})}
            steps = {step for step, generation in mine.items() if self._counts("", rank, step, generation)}
            for holder, shelf in self.copies.items():
                there = shelf.get(rank, {})
                steps |= {step for step, generation in there.items() if self._counts(holder, rank, step, generation)}
            common = steps if common is None else common & steps
        return max((common or set()) | on_disk | self._best_former(), default=None)

    def _best_former(self) -> set[int]:
        """Steps that all ranks of a generation of another size have in some node's memory."""
        found: set[int] = set()
        for size in {world for shelves in self.former.values() for world, _ in shelves} - {self.world_size}:
            by_rank = [
                {
                    step
                    for node, shelves in self.former.items()
                    for step, generation in shelves.get((size, rank), {}).items()
                    if self._counts(node, rank, step, generation)
                }
                for rank in range(size)
            ]
            found |= set.intersection(*by_rank)
        return found

    def resize(self, world_size: int) -> None:
        """The coming generation has so many ranks: what is there is of another size, until that comes again."""
        if world_size == self.world_size:
            return
        for holders in (self.own, self.copies):
            for node, shelf in holders.items():
                for rank, steps in shelf.items():
                    self.former.setdefault(node, {}).setdefault((self.world_size, rank), {}).update(steps)
                shelf.clear()
        for node, shelves in self.former.items():
            for key in [key for key in shelves if key[0] == world_size]:
                self.copies.setdefault(node, {}).setdefault(key[1], {}).update(shelves.pop(key))
        self.kept = {}
        self.world_size = world_size

    def _counts(self, node: str, rank: int, step: int, generation: int) -> bool:
        owner = next((g for g, floor in reversed(self._history) if floor < step), None)
        return generation == owner and (node, rank, step) not in self._found_bad

    def start(self, action: StartWorkers) -> list[Failed]:
        """The ranks of this node go on from the step: those that cannot, because it is damaged."""
        if action.generation not in (generation for generation, _ in self._history):
            self._begin(action.generation, action.resume_step)
        failed = []
        mine = self.own.setdefault(action.node, {})
        for rank in range(action.first_rank, action.first_rank + action.num_ranks):
            kept = self.kept.pop(rank, None)
            mine.setdefault(rank, kept or {})
            if action.resume_step is not None:
                failed += self._restore(action, rank, action.resume_step)
            for shelf in (mine, self.copies.get(action.node, {}), self.former.get(action.node, {})):
                _invalidate_after(shelf, -1 if action.resume_step is None else action.resume_step)
        return failed

    def _restore(self, action: StartWorkers, rank: int, step: int) -> list[Failed]:
        mine = self.own[action.node].setdefault(rank, {})
        if action.restore_path:
            self._require(action.restore_path in self.disk, f"no checkpoint {action.restore_path}")
            self._require(self.disk[action.restore_path].step == step, f"{action.restore_path} is not step {step}")
            return self._look(action, rank, action.restore_path, "disk", action.restore_path)
        if action.former_world:
            return self._spread(action, rank, step)
        fetch = next((each for each in action.fetch if each.rank == rank), None)
        if fetch is None:
            self._check(mine, step, f"rank {rank} on {action.node}")
            return self._look(action, rank, ("", rank, step), "memory", "")
        self._require(fetch.step == step, f"{fetch} fetches another step than {step}")
        there = self.copies.get(fetch.node, {}).get(rank, {})
        self._check(there, step, f"the copy of rank {rank} on {fetch.node}")
        mine[step] = there[step]
        return self._look(action, rank, (fetch.node, rank, step), "peer", fetch.node)

    def _spread(self, action: StartWorkers, rank: int, step: int) -> list[Failed]:
        """From all ranks of a generation of another size."""
        world_size = action.former_world
        asked = sorted(fetch.rank for fetch in action.fetch)
        self._require(asked == list(range(world_size)), f"rank {rank} gets {asked} of {world_size} ranks")
        for fetch in action.fetch:
            there = self.former.get(fetch.node, {}).get((world_size, fetch.rank), {})
            self._check(there, step, f"rank {fetch.rank} of {world_size} on {fetch.node}")
            self.former.setdefault(action.node, {}).setdefault((world_size, fetch.rank), {})[step] = there[step]
        return []

    def _look(self, action: StartWorkers, rank: int, place: Place, source: str, where: str) -> list[Failed]:
        """All ranks of a generation may find the same damage; no later generation may."""
        found = self._found_bad.get(place, action.generation)
        self._require(
            found == action.generation, f"{place} was found damaged in generation {found}, and is tried again"
        )
        if place in self.unreadable:
            return [Failed(rank, action.resume_step or 0, source, where, is_damaged=False)]
        if place not in self.damaged:
            return []
        self._found_bad[place] = action.generation
        if source == "peer":  # it has been fetched, and lies in the rank's own memory as well now
            self.damaged.add(("", rank, action.resume_step or 0))
            self._found_bad[("", rank, action.resume_step or 0)] = action.generation
        return [Failed(rank, action.resume_step or 0, source, where)]

    def _check(self, shelf: dict[int, int], step: int, whose: str) -> None:
        self._require(step in shelf, f"{whose} has {sorted(shelf)}, not step {step}")
        # The generation that is starting is the last of the history; what counts was taken before it.
        owner = next((g for g, floor in reversed(self._history[:-1]) if floor < step), None)
        self._require(shelf[step] == owner, f"step {step} of {whose} is of generation {shelf[step]}, not {owner}")

    def _begin(self, generation: int, resume_step: int | None) -> None:
        self._history.append((generation, -1 if resume_step is None else resume_step))
        self.backups = {}
        if resume_step is None or (self.trusted is not None and self.trusted > resume_step):
            self.trusted = resume_step

    def _copy(self, rank: int, node: str, step: int) -> None:
        generation, floor = self._history[-1]
        if step > floor:
            theirs = self.copies.setdefault(node, {}).setdefault(rank, {})
            theirs[step] = generation
            self._forget(theirs, COPY_BUFFERS)
            self._renew((node, rank, step))

    def arrive_late(self, rank: int, node: str, step: int, generation: int) -> None:
        """A copy that was on its way when its generation ended."""
        self.copies.setdefault(node, {}).setdefault(rank, {})[step] = generation

    def _renew(self, place: Place) -> None:
        self.damaged.discard(place)
        self._found_bad.pop(place, None)

    def _forget(self, shelf: dict[int, int], num_kept: int) -> None:
        """All but the newest, and the trusted one, which is pinned."""
        for step in sorted(shelf)[:-num_kept]:
            if step != self.trusted:
                del shelf[step]

    @staticmethod
    def _require(holds: bool, message: str) -> None:
        if not holds:
            raise ImpossibleStartError(message)


def _told(shelf: Shelf, ranks: Iterable[int]) -> tuple[Held, ...]:
    told = []
    for rank in sorted(ranks):
        steps = sorted(shelf.get(rank, {}))
        if steps:
            told.append(Held(rank=rank, steps=tuple(steps), generations=tuple(shelf[rank][step] for step in steps)))
    return tuple(told)


def _invalidate_after(shelf: Mapping[Any, dict[int, int]], last: int) -> None:
    for held in shelf.values():
        for step in [step for step in held if step > last]:
            del held[step]
