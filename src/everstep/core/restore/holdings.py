"""Steps that can be restored: the newest one that every rank can have, and where from. Pure; asked when a generation
forms.

For one step each rank takes what is nearest: the memory of the node that has its slot, then another node's memory. A
checkpoint in the persistent tier is for all ranks together, and is taken where it is newer than what memory has.

A snapshot counts only if it belongs to the history that the job is in: a later generation that went back before its
step has made it void (`State.resumes`). What failed to restore once is struck, and never offered again.

A node reports with each snapshot the world size that wrote it. Snapshots of the current world size belong to a rank;
the others can be restored only together, all ranks of that generation, and are kept with the copies of their holder.
"""

from collections.abc import Iterable, Iterator

import msgspec

from everstep.core.state.frozenmap import FrozenMap
from everstep.core.state.schema import Member, Role, State, Struck
from everstep.model.facts import Checkpoint, Fetch, Held

MOST_RANKS = 64
"""Every node gets the snapshots of all ranks of a generation of another size. More is too much for one memory and one
message, and the persistent tier is what the state is spread from."""


class Restore(msgspec.Struct, frozen=True, kw_only=True):
    """A step that every rank can have, and how."""

    step: int
    fetch: tuple[Fetch, ...] = ()  # ranks that find it in another node's memory; the others find it where they are
    path: str = ""  # from this checkpoint, all ranks
    former_world: int = 0  # `fetch` has all ranks of a generation of so many, each needs all; 0: as many as now


def newest(state: State, *, only_trusted: bool = False, even_struck: bool = False) -> Restore | None:
    """The newest step that every rank can have. `only_trusted`: and that no corruption can have touched."""
    trusted = -1 if state.trusted_step is None else state.trusted_step
    found = [
        restore
        for shelf in _shelves(state, even_struck=even_struck)
        if (restore := _newest_on(shelf, last=trusted if only_trusted else None)) is not None
    ]
    in_memory = max(found, key=lambda each: each.step, default=None)  # of two the first: of the present size
    disk = newest_checkpoint(state, only_trusted=only_trusted, even_struck=even_struck)
    if disk is not None and (in_memory is None or disk.step > in_memory.step):
        return Restore(step=disk.step, path=disk.path)
    return in_memory


def _shelves(state: State, *, even_struck: bool) -> Iterator["_Shelf"]:
    yield _Shelf(state, even_struck=even_struck)
    for world_size in former_sizes(state):
        yield _Shelf(state, even_struck=even_struck, former_world=world_size)


def newest_before(state: State, step: int) -> Restore | None:
    """The newest one before this step that every rank finds in memory."""
    found = [_newest_on(shelf, last=step - 1) for shelf in _shelves(state, even_struck=False)]
    return max(filter(None, found), key=lambda each: each.step, default=None)


def _newest_on(shelf: "_Shelf", *, last: int | None) -> Restore | None:
    """`last`: not after this step."""
    steps = {step for step in shelf.common_steps() if last is None or step <= last}
    if not steps:
        return None
    return Restore(step=max(steps), fetch=shelf.fetches(max(steps)), former_world=shelf.former_world)


def newest_checkpoint(state: State, *, only_trusted: bool = False, even_struck: bool = False) -> Checkpoint | None:
    usable = [
        each
        for each in state.checkpoints
        if (even_struck or not any(strikes(s, each) for s in state.struck))
        and (not only_trusted or _is_trusted(state, each))
    ]
    return max(usable, key=lambda each: each.step, default=None)


def newest_by_rank(state: State) -> dict[int, tuple[int, str] | None]:
    """The newest snapshot of every rank in any memory, and on which node; None: there is none."""
    shelf = _Shelf(state, even_struck=False)
    found: dict[int, tuple[int, str] | None] = {}
    for rank, steps in shelf.by_rank():
        newest = max(steps, default=None)
        found[rank] = None if newest is None else (newest, shelf.holder(rank, newest))
    return found


def cut(state: State, last: int | None) -> tuple[FrozenMap[int, Held], FrozenMap[str, tuple[Held, ...]]]:
    """Return what ranks and copies hold after the agents went back to this step: they forget newer ones."""
    newest = -1 if last is None else last
    held = {rank: _up_to(each, newest) for rank, each in state.held.items()}
    copies = {node: [_up_to(each, newest) for each in told] for node, told in state.copies.items()}
    return (
        FrozenMap({rank: each for rank, each in held.items() if each.steps}),
        FrozenMap({node: tuple(each for each in told if each.steps) for node, told in copies.items()}),
    )


def divided(state: State, told: Iterable[Held]) -> tuple[tuple[Held, ...], tuple[Held, ...]]:
    """Snapshots of generations of the present size, and of others."""
    world = _world(state)
    same: list[Held] = []
    other: list[Held] = []
    for held in told:
        (same if held.world_size in (0, world) else other).append(held)
    return tuple(same), tuple(other)


def former_sizes(state: State) -> tuple[int, ...]:
    """Other sizes of which a snapshot is in memory, the smallest first."""
    found = {held.world_size for copies in state.copies.values() for held in copies}
    return tuple(sorted(size for size in found if 0 < size <= MOST_RANKS and size != _world(state)))


class _Shelf:
    """Valid snapshots in memory, by rank: of generations of the present size, or of another one."""

    def __init__(self, state: State, *, even_struck: bool, former_world: int = 0) -> None:
        self._state = state
        self.former_world = former_world
        self._floors = floors(state)
        self._struck = () if even_struck else state.struck
        self._size = _world(state)
        self._world = range(former_world or self._size)
        own = state.held.items() if not former_world else ()
        self.own = {rank: set(self._valid(held, node="")) for rank, held in own if rank in self._world}
        self.elsewhere: dict[int, dict[int, Member]] = {}  # rank -> step -> the node that holds a copy
        for member in state.members.values():
            if member.role is not Role.OUT and member.endpoint:
                self._add_copies(member)

    def by_rank(self) -> Iterator[tuple[int, set[int]]]:
        for rank in self._world:
            yield rank, self.own.get(rank, set()) | self.elsewhere.get(rank, {}).keys()

    def holder(self, rank: int, step: int) -> str:
        spec, is_own = self._state.spec, step in self.own.get(rank, ())
        if not is_own or spec is None:
            return self.elsewhere[rank][step].node
        return self._state.slots[rank // spec.nproc_per_node] or ""

    def common_steps(self) -> set[int]:
        common: set[int] | None = None
        for _, steps in self.by_rank():
            common = steps if common is None else common & steps
            if not common:
                return set()
        return common or set()

    def fetches(self, step: int) -> tuple[Fetch, ...]:
        missing = [rank for rank in self._world if step not in self.own.get(rank, ())]
        holders = [(rank, self.elsewhere[rank][step]) for rank in missing]
        return tuple(Fetch(rank=rank, step=step, node=m.node, endpoint=m.endpoint) for rank, m in holders)

    def _add_copies(self, member: Member) -> None:
        for held in self._state.copies.get(member.node, ()):
            if held.rank in self._world and (held.world_size or self._size) == (self.former_world or self._size):
                mine = self.elsewhere.setdefault(held.rank, {})
                for step in self._valid(held, member.node):
                    mine.setdefault(step, member)

    def _valid(self, held: Held, node: str) -> Iterator[int]:
        """The valid steps. A step that is also held as a void snapshot is left out: a fetch could return either one."""
        void: set[int] = set()
        found: list[int] = []
        for step, generation in _entries(held):
            is_struck = any(_strikes_memory(s, held.rank, step, generation, node) for s in self._struck)
            is_void = generation is not None and self._is_void(step, generation)
            (void.add if is_struck or is_void else found.append)(step)
        return (step for step in found if step not in void)

    def _is_void(self, step: int, generation: int) -> bool:
        """A later generation went back before it, so this history is no more."""
        return any(later > generation and step > floor for later, floor in self._floors)


def floors(state: State) -> list[tuple[int, int]]:
    """(generation, step that it resumed from), oldest first, without those that a later one undercuts."""
    found: list[tuple[int, int]] = []
    for generation in sorted(state.resumes):
        step = state.resumes[generation]
        floor = -1 if step is None else step
        while found and found[-1][1] >= floor:
            found.pop()
        found.append((generation, floor))
    return found


def _world(state: State) -> int:
    return 0 if state.spec is None else state.spec.world_size


def _entries(held: Held) -> Iterator[tuple[int, int | None]]:
    """(step, generation that wrote it); None: not reported, as by agents of older versions."""
    told = held.generations if len(held.generations) == len(held.steps) else (None,) * len(held.steps)
    return zip(held.steps, told, strict=True)


def _up_to(held: Held, last: int) -> Held:
    kept = [(step, generation) for step, generation in _entries(held) if step <= last]
    generations = tuple(generation for _, generation in kept if generation is not None)
    return msgspec.structs.replace(held, steps=tuple(step for step, _ in kept), generations=generations)


def _strikes_memory(struck: Struck, rank: int, step: int, generation: int | None, node: str) -> bool:
    if struck.path or (struck.rank, struck.step, struck.node) != (rank, step, node):
        return False
    return generation is None or generation < struck.generation


def strikes(struck: Struck, checkpoint: Checkpoint) -> bool:
    return bool(struck.path) and struck.path == checkpoint.path and checkpoint.at <= struck.at


def _is_trusted(state: State, checkpoint: Checkpoint) -> bool:
    return checkpoint.is_trusted or (state.trusted_step is not None and checkpoint.step <= state.trusted_step)
