"""The search for the rank that computed wrongly, in what all ranks of a group noted bit by bit. Pure.

A rank's trace is the digests of all that it computed and all that it was sent, in the order of its program. Ranks of
the same role, and the same rank in every round, have equal traces on sound machines. A wrong number spreads: every
receiver computes something else from then on. So a rank is to blame only if the first thing in which it differs from
the majority of its role is one that it computed itself, from what the others were sent as well.
"""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

Trace = tuple[str, ...]
Role = tuple[int, int]
"""Stage of the pipeline and shard of it: what is computed."""

COMPUTED, RECEIVED = "c", "r"
"""With what an entry begins."""

LEAST_SAMPLES = 3
"""Least number of ranks of a role; with two it is undecidable which is right."""


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    digest: str  # of everything; equal for all groups that computed the same
    num_different: int  # traces that are not as the majority's, or not alike where there is none
    num_compared: int  # traces that had another one to be compared with
    culprits: tuple[int, ...]  # ranks


def compare(traces: Mapping[tuple[int, int, Role], Trace]) -> Compared:
    """`traces`: (rank, round, role) -> trace."""
    of_role: dict[Role, list[tuple[int, Trace]]] = {}
    for (rank, _, role), trace in sorted(traces.items(), key=lambda each: (each[0][2], each[0])):
        of_role.setdefault(role, []).append((rank, trace))
    different, compared, culprits = 0, 0, set[int]()
    for found in of_role.values():
        each = Counter(trace for _, trace in found)
        compared += len(found) if len(found) > 1 else 0
        if len(each) > 1:
            usual = each.most_common(1)[0]
            different += len(found) - usual[1]
            culprits |= _culprits(found)
    return Compared(
        digest=_digest([trace for found in of_role.values() for trace in _distinct(found)]),
        num_different=different,
        num_compared=compared,
        culprits=tuple(sorted(culprits)),
    )


def _culprits(found: Sequence[tuple[int, Trace]]) -> set[int]:
    if len(found) < LEAST_SAMPLES:
        return set()
    usual = _usual([trace for _, trace in found])
    guilty = set()
    for rank, trace in found:
        first = next((at for at, entry in enumerate(trace) if at >= len(usual) or entry != usual[at]), None)
        if first is not None and first < len(usual) and usual[first] and trace[first][0] == COMPUTED:
            guilty.add(rank)
    return guilty


def _usual(traces: Sequence[Trace]) -> list[str]:
    """Entry by entry what more than half of them have; empty where there is no such."""
    usual = []
    for entries in zip(*traces, strict=False):
        entry, count = Counter(entries).most_common(1)[0]
        usual.append(entry if 2 * count > len(traces) else "")
    return usual


def _distinct(found: Sequence[tuple[int, Trace]]) -> list[Trace]:
    """List the different traces of one role: on sound machines there is one, whatever the number of replicas and
    rounds."""
    return list(dict.fromkeys(trace for _, trace in found))


def _digest(traces: Sequence[Trace]) -> str:
    text = "\n".join(" ".join(trace) for trace in traces)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
