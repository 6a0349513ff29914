"""The job's parallel layout on few ranks: TP and PP are kept as far as they fit, everything else becomes data-parallel.

Pure. The order of the axes is the job's, outermost first, so neighbours stay neighbours: what shares a machine in the
job shares one here.
"""

import math
from collections.abc import Sequence

import msgspec

KEPT = ("tp", "pp")


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """Axes outermost first; one of them is "dp". The product of their sizes is the world size."""

    axes: tuple[tuple[str, int], ...]

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

    def role(self, rank: int) -> tuple[int, int]:
        """What the rank computes: ranks of the same role compute the same."""
        place = self.place(rank)
        return place.get("pp", 0), place.get("tp", 0)

    def words(self) -> str:
        return ", ".join(f"{name} {size}" for name, size in self.axes)

    def _has(self, name: str) -> bool:
        return any(axis == name for axis, _ in self.axes)

    def _index(self, name: str) -> int:
        return [axis for axis, _ in self.axes].index(name)


def fit(shape: Sequence[tuple[str, int]], world_size: int) -> Layout:
    """The layout of `shape` on `world_size` ranks. A TP or PP that does not fit becomes its largest divisor that does,
    TP first: it is the one that lives inside of a machine."""
    wanted = {name: size for name, size in shape if name in KEPT and size > 1}
    left, kept = world_size, dict[str, int]()
    for name in KEPT:
        kept[name] = math.gcd(wanted.get(name, 1), left)
        left //= kept[name]
    order = [name for name, _ in shape if name in kept and kept[name] > 1]
    replicas = next((at for at, (name, _) in enumerate(shape) if name not in KEPT), 0)
    at = sum(1 for name, _ in shape[:replicas] if name in order)
    axes = [(name, kept[name]) for name in order]
    return Layout(axes=(*axes[:at], ("dp", left), *axes[at:]))
