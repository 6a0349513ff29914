"""Finds bad nodes from examinations of nodes in pairs. Pure.

Each node is examined with both its neighbours in a ring. A pair that passes clears both; a node is named only if it
failed together with a node that another pair has cleared. Two bad nodes can make a healthy node between them fail
twice: that node is not named, because both its failures are explained.
"""

from collections.abc import Mapping, Sequence

import msgspec

from everstep.analyzer.slowness.replay import Outcome

Pair = tuple[str, str]


class Singled(msgspec.Struct, frozen=True, kw_only=True):
    bad: tuple[str, ...] = ()
    partners: dict[str, tuple[str, ...]] = {}  # bad node -> cleared nodes with which it failed
    unclear: tuple[str, ...] = ()  # failed only together with nodes that are, or may be, bad themselves


def ring_rounds(nodes: Sequence[str]) -> tuple[tuple[Pair, ...], ...]:
    """Pairs of neighbours in rounds: no node is in two pairs of a round, and each meets both its neighbours. Two rounds
    for an even number of nodes, three for an odd one, one for two."""
    num = len(nodes)
    if num < 2:
        return ()
    if num == 2:
        return (((nodes[0], nodes[1]),),)
    first = tuple((nodes[i], nodes[i + 1]) for i in range(0, num - 1, 2))
    second = tuple((nodes[i], nodes[(i + 1) % num]) for i in range(1, num - num % 2, 2))
    last = (((nodes[-1], nodes[0]),),) if num % 2 else ()
    return (first, second, *last)


def single_out(outcomes: Mapping[Pair, Outcome]) -> Singled:
    """Find the bad nodes. `outcomes`: True for a pair that failed, False for one that passed, None: no answer."""
    cleared = {node for pair, outcome in outcomes.items() if outcome is False for node in pair}
    partners: dict[str, list[str]] = {}
    for pair, outcome in outcomes.items():
        if outcome is True:
            for node, other in (pair, pair[::-1]):
                if node not in cleared and other in cleared:
                    partners.setdefault(node, []).append(other)
    failed = dict.fromkeys(node for pair, outcome in outcomes.items() if outcome is True for node in pair)
    unclear = tuple(node for node in failed if node not in cleared and node not in partners)
    return Singled(bad=tuple(partners), partners={n: tuple(others) for n, others in partners.items()}, unclear=unclear)
