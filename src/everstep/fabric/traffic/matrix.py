"""Bytes that each host sends to each other host in one collective.

A ring visits each host once for any order of ranks, as NCCL's rings do. A tree is NCCL's double binary tree. Sizes are
those of the whole buffer, as in nccl-tests. If the root is unknown, the open end of a chain is averaged.
"""

import itertools
import re
from collections.abc import Iterable, Sequence

import msgspec

Amounts = dict[tuple[str, str], float]
"""Bytes from host to host."""

_NOTHING = ("barrier", "monitored_barrier")
_PAIR = re.compile(r"(send|recv) (\d+)->(\d+)$")


class Span(msgspec.Struct, frozen=True):
    """`per_s` operations began in each second from `begin` to `end` (seconds since the epoch)."""

    begin: float
    end: float
    per_s: float


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    job: str
    group: str
    op: str
    num_bytes: int | None
    hosts: tuple[str, ...]  # host of each rank, in the order of the group
    spans: tuple[Span, ...]


def sends(op: str, num_bytes: int | None, hosts: Sequence[str], *, is_tree: bool = False) -> Amounts | None:
    """Bytes from host to host in one operation. `hosts`: host of each rank, in the order of the group. `is_tree`: an
    all-reduce uses trees. None: it is unknown how the operation moves data, or how much."""
    name, num = op.lstrip("_"), len(hosts)
    order = list(dict.fromkeys(hosts))
    if len(order) < 2 or name.startswith(_NOTHING):
        return {}
    if num_bytes is None:
        return None
    pair = _PAIR.match(name)
    if pair:
        return _pair(hosts, pair[1], int(pair[2]), int(pair[3]), num_bytes)
    if name.startswith(("all_reduce", "allreduce")):
        share = 2 * (num - 1) / num
        return _tree(order, num_bytes) if is_tree else _ring(order, share * num_bytes)
    if name.startswith(("all_gather", "allgather", "reduce_scatter", "broadcast", "reduce")):
        return _ring(order, (num - 1) / num * num_bytes)
    if name.startswith(("all_to_all", "alltoall")):
        return _summed((one, other, num_bytes / num) for one, other in itertools.permutations(hosts, 2))
    return None


def _pair(hosts: Sequence[str], verb: str, source: int, target: int, num_bytes: int) -> Amounts | None:
    """A transfer is counted at the sender."""
    if verb == "recv":
        return {}
    if max(source, target) >= len(hosts):
        return None
    return _summed([(hosts[source], hosts[target], float(num_bytes))])


def _ring(order: Sequence[str], amount: float) -> Amounts:
    return _summed((one, other, amount) for one, other in zip(order, [*order[1:], order[0]], strict=True))


def _tree(order: Sequence[str], num_bytes: int) -> Amounts:
    """Each of two trees carries half of the buffer: up to be summed, then down again."""
    num = len(order)
    second = [(place + 1) % num for place in range(num)] if num % 2 else list(range(num))[::-1]
    half, found = num_bytes / 2, list[tuple[str, str, float]]()
    for places in (range(num), second):
        for place in range(1, num):
            one, other = order[places[place]], order[places[_parent(place, num)]]
            found += [(one, other, half), (other, one, half)]
    return _summed(found)


def _parent(place: int, num: int) -> int:
    """Parent in NCCL's binary tree: leaves are the odd places, and place 0 is the root."""
    bit = place & -place
    up = (place ^ bit) | (bit << 1)
    return up if up < num else place ^ bit


def _summed(edges: Iterable[tuple[str, str, float]]) -> Amounts:
    found: Amounts = {}
    for one, other, amount in edges:
        if one != other:
            found[one, other] = found.get((one, other), 0.0) + amount
    return found
