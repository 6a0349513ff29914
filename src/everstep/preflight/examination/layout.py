"""The job's parallel layout on few ranks: TP and PP are kept, everything else becomes data-parallel.

Pure. The order of the axes is the job's, outermost first, so neighbours stay neighbours: what shares a machine in the
job shares one here. All stages of the job's pipeline are computed in any case: where there are too few ranks for them,
a rank computes several, one after another. So groups of any size compute the same, and can be compared.
"""

import math
from collections.abc import Sequence

import msgspec

KEPT = ("tp", "pp")


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """Axes outermost first; one of them is "dp". The product of their sizes is the world size."""

    axes: tuple[tuple[str, int], ...]
    num_stages: int = 1  # of the job's pipeline; a multiple of the size of "pp"

    def size(self, name: str) -> int:
        return dict(self.axes).get(name, 1)

    def place(self, rank: int) -> dict[str, int]:
        """Coordinates of a rank."""
        found = {}
        for name, size in reversed(self.axes):
            rank, found[name] = divmod(rank, size)
        return found

    def line(self, rank: int, along: str) -> tuple[int, ...]:
        """The ranks whose coordinates are this rank's but for `along`, in that order. With itself."""
        stride = math.prod(size for _, size in self.axes[self._index(along) + 1 :]) if self._has(along) else 1
        first = rank - self.place(rank).get(along, 0) * stride
        return tuple(first + at * stride for at in range(self.size(along)))

    def lines(self, along: str) -> tuple[tuple[int, ...], ...]:
        """All of them, each once: the process groups of an axis."""
        world = math.prod(size for _, size in self.axes)
        return tuple(dict.fromkeys(self.line(rank, along) for rank in range(world)))

    def stages(self, rank: int) -> range:
        """Stages that the rank computes."""
        each = self.num_stages // self.size("pp")
        first = self.place(rank).get("pp", 0) * each
        return range(first, first + each)

    def holder(self, stage: int) -> int:
        """The coordinate along "pp" at which a stage is computed."""
        return stage * self.size("pp") // self.num_stages

    def shard(self, rank: int) -> int:
        return self.place(rank).get("tp", 0)

    def words(self) -> str:
        stages = f" ({self.num_stages} stages)" if self.num_stages != self.size("pp") else ""
        return ", ".join(f"{name} {size}" for name, size in self.axes) + stages

    def _has(self, name: str) -> bool:
        return any(axis == name for axis, _ in self.axes)

    def _index(self, name: str) -> int:
        return [axis for axis, _ in self.axes].index(name)


def fit(shape: Sequence[tuple[str, int]], world_size: int) -> Layout:
    """The layout of `shape` on `world_size` ranks. A TP or PP that does not fit is spread over as many ranks as do, TP
    first: it is the one that lives inside of a machine. A TP that had to give way is another computation."""
    wanted = {name: size for name, size in shape if name in KEPT and size > 1}
    left, kept = world_size, dict[str, int]()
    for name in KEPT:
        kept[name] = math.gcd(wanted.get(name, 1), left)
        left //= kept[name]
    order = [name for name, _ in shape if name in kept and kept[name] > 1]
    replicas = next((at for at, (name, _) in enumerate(shape) if name not in KEPT), 0)
    at = sum(1 for name, _ in shape[:replicas] if name in order)
    axes = [(name, kept[name]) for name in order]
    return Layout(axes=(*axes[:at], ("dp", left), *axes[at:]), num_stages=wanted.get("pp", 1))
