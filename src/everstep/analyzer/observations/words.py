"""Ranks, groups and times as people read them. Pure."""

from collections.abc import Iterable

from everstep.analyzer.observations.records import Collective, ParallelGroup


def busy_text(why: str) -> str:
    """Return the words for a rank that reported itself busy with `everstep.busy`."""
    return f"says that it is busy: {why}" if why else "says that it is busy"


MOST_SPANS = 64
"""Of ranks in one text: every second of ten thousand would be a page. Fields of JSON list all."""


def fold(ranks: Iterable[int]) -> str:
    """`0-2,7`; of very many spans the first ones: `0,2,4 and 9,997 more`."""
    spans: list[tuple[int, int]] = []
    for rank in sorted(set(ranks)):
        if spans and rank == spans[-1][1] + 1:
            spans[-1] = spans[-1][0], rank
        else:
            spans.append((rank, rank))
    shown = ",".join(f"{start}" if start == last else f"{start}-{last}" for start, last in spans[:MOST_SPANS])
    num_more = sum(last - start + 1 for start, last in spans[MOST_SPANS:])
    return f"{shown} and {num_more:,} more" if num_more else shown


def ranks_text(ranks: Iterable[int]) -> str:
    """`rank 2`, `ranks 0-2,7`."""
    listed = sorted(set(ranks))
    return f"rank {listed[0]}" if len(listed) == 1 else f"ranks {fold(listed)}"


def names_text(names: Iterable[str], most: int = 8) -> str:
    """`n0`, `n0 and n3`, `n0, n1, n2 and 9 more`."""
    listed = list(names)
    if len(listed) > most:
        return f"{', '.join(listed[: most - 1])} and {len(listed) - most + 1} more"
    return " and ".join(part for part in (", ".join(listed[:-1]), *listed[-1:]) if part)


def verb(ranks: Iterable[int], one: str, many: str) -> str:
    return one if len(set(ranks)) == 1 else many


def operation(entry: Collective, group: ParallelGroup) -> str:
    """`all_reduce #6 in mesh_tp`."""
    if entry.is_p2p and entry.peer:
        source, destination = (group.ranks[p] if p < len(group.ranks) else p for p in entry.peer)
        return f"{entry.op} {source}->{destination} in {group.title}"
    return f"{entry.op} #{entry.seq} in {group.title}"


def per_step(value: float) -> str:
    """Fine enough to compare two of them: 117 ms, 1.30 s."""
    return f"{value * 1000:.3g} ms" if value < 0.9995 else f"{value:.2f} s"


def seconds(value: float) -> str:
    if value < 0.1:
        return f"{value * 1000:.0f} ms"
    if value < 10:
        return f"{value:.1f} s"
    return f"{value:.0f} s" if value < 180 else f"{value / 60:.0f} min"
