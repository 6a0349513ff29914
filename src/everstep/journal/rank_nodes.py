"""Node of each rank of a generation, stored as ranges: a large job restarts often, and a foreign journal may name a
million ranks in every line."""

from bisect import bisect_right
from collections.abc import Iterator, Mapping


class RankNodes(Mapping[int, str]):
    """Rank -> node, in the order of ranks. The latest placement counts."""

    def __init__(self, nodes: Mapping[int, str] | None = None) -> None:
        self._firsts: list[int] = []
        self._rest: list[tuple[int, str]] = []  # of each range: one behind its last rank, and the node
        self._num_ranks = 0
        for rank, node in (nodes or {}).items():
            self.place(rank, 1, node)

    def place(self, first: int, num_ranks: int, node: str) -> None:
        """`num_ranks` ranks from `first` on are there."""
        end = first + num_ranks
        if num_ranks <= 0:
            return
        low = bisect_right(self._firsts, first)
        if low and self._rest[low - 1][0] > first:
            low -= 1
        high = low
        while high < len(self._firsts) and self._firsts[high] < end:
            high += 1
        pieces = [(first, end, node)]
        if high > low:
            if self._firsts[low] < first:
                pieces.insert(0, (self._firsts[low], first, self._rest[low][1]))
            last_end, last = self._rest[high - 1]
            if last_end > end:
                pieces.append((end, last_end, last))
        gone = sum(self._rest[at][0] - self._firsts[at] for at in range(low, high))
        self._num_ranks += sum(to - begin for begin, to, _ in pieces) - gone
        self._firsts[low:high] = [begin for begin, _, _ in pieces]
        self._rest[low:high] = [(to, where) for _, to, where in pieces]

    def __getitem__(self, rank: int) -> str:
        at = bisect_right(self._firsts, rank) - 1
        if at < 0 or rank >= self._rest[at][0]:
            raise KeyError(rank)
        return self._rest[at][1]

    def __iter__(self) -> Iterator[int]:
        for first, (end, _) in zip(self._firsts, self._rest, strict=True):
            yield from range(first, end)

    def __len__(self) -> int:
        return self._num_ranks

    def __repr__(self) -> str:
        ranges = (f"{first}-{end - 1}: {node}" for first, (end, node) in zip(self._firsts, self._rest, strict=True))
        return f"RankNodes({', '.join(ranges)})"
