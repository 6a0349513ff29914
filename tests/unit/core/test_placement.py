"""Placement of copies: a proof by exhaustion for every regular layout up to 512 ranks, with a checker of its own that
shares no code with the placement; then irregular ones, racks, and a hundred thousand ranks.
"""

import itertools
import math
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everstep.core.restore.placement import MOST_LOAD, Placement, place
from everstep.model.facts import RankGroup

MAX_RANKS = 512


def megatron(tp: int, pp: int, dp: int, order: str = "tp-dp-pp") -> list[RankGroup]:
    """All groups of the three dimensions, as Megatron numbers its ranks: the first dimension of the order fastest."""
    sizes = {"tp": tp, "pp": pp, "dp": dp}
    axes = order.split("-")
    strides, stride = {}, 1
    for axis in axes:
        strides[axis], stride = stride, stride * sizes[axis]
    groups = []
    for axis in axes:
        others = [other for other in axes if other != axis]
        for at in itertools.product(*(range(sizes[other]) for other in others)):
            base = sum(index * strides[other] for index, other in zip(at, others, strict=True))
            ranks = tuple(base + index * strides[axis] for index in range(sizes[axis]))
            groups.append(RankGroup(title=axis, ranks=ranks))
    return groups


def nodes_of(num_ranks: int, per_node: int) -> dict[str, range]:
    return {f"n{i}": range(i * per_node, (i + 1) * per_node) for i in range(num_ranks // per_node)}


def factorisations(num_ranks: int) -> Iterator[tuple[int, int, int]]:
    for tp in range(1, num_ranks + 1):
        if num_ranks % tp == 0:
            for pp in range(1, num_ranks // tp + 1):
                if num_ranks // tp % pp == 0:
                    yield tp, pp, num_ranks // tp // pp


def layouts(sizes: Iterable[int]) -> Iterator[tuple[int, int, int, int]]:
    """tp, pp, dp and ranks per node, without those that are another by another name. The order tp-pp-dp is tp-dp-pp
    with pp and dp called the other way round. What lies within a node (tensor-parallel groups, or ranks of one) goes
    with it in any case."""
    seen = set()
    for size in sizes:
        for tp, pp, dp in factorisations(size):
            for per_node in (1, 2, 4, 8, 16):
                if size % per_node == 0 and size > per_node:
                    inside = math.gcd(tp, per_node)
                    if inside in (tp, per_node):
                        seen.add((tp // inside, pp, dp, per_node // inside))
                    else:
                        seen.add((tp, pp, dp, per_node))
    yield from seen


class Checker:
    """What is evicted together, as bit masks of nodes."""

    def __init__(
        self, nodes: Mapping[str, Sequence[int]], groups: Sequence[RankGroup], racks: Mapping[str, str] | None = None
    ) -> None:
        self.index = {node: number for number, node in enumerate(nodes)}
        self.home = {rank: self.index[node] for node, ranks in nodes.items() for rank in ranks}
        self.all = (1 << len(nodes)) - 1
        masks = set()
        self.of_rank: dict[int, set[int]] = {rank: set() for rank in self.home}
        for group in groups:
            mask = 0
            for rank in group.ranks:
                mask |= 1 << self.home[rank]
            masks.add(mask)
            for rank in group.ranks:
                self.of_rank[rank].add(mask)
        self.units = masks - {self.all}  # who evicts the whole job evicts every copy
        of_rack: dict[str, int] = {}
        for node, rack in (racks or {}).items():
            of_rack[rack] = of_rack.get(rack, 0) | 1 << self.index[node]
        self.racks = {mask for mask in of_rack.values() if mask.bit_count() > 1} - {self.all}
        self.reach = [1 << node for node in range(len(nodes))]  # everything that goes together with a node
        for mask in self.units | self.racks:
            for node in range(len(nodes)):
                if mask >> node & 1:
                    self.reach[node] |= mask

    def check(self, placement: Placement, *, is_even: bool = True) -> None:
        assert placement.backups.keys() == self.home.keys()
        load: Counter[int] = Counter()
        for rank, name in placement.backups.items():
            home, there = self.home[rank], self.index[name]
            load[there] += 1
            assert there != home, f"rank {rank}: the copy is on the same machine"
            is_possible = self.reach[home] != self.all
            is_safe = not self.reach[home] >> there & 1
            if rank not in placement.crowded:
                assert is_safe == is_possible, f"rank {rank} on node {home}: copy on {there}"
            if not is_safe:
                assert "both copies would be lost with" in placement.weaker[rank]
        per_node = max(Counter(self.home.values()).values())
        assert placement.crowded <= placement.weaker.keys()
        if placement.crowded:
            assert max(load.values()) <= MOST_LOAD * per_node
            assert not self.has_even(MOST_LOAD * per_node), "there was room in other racks"
        elif is_even and max(load.values()) > per_node:
            assert not self.has_even(per_node), f"not even, though it could be: {load}"

    def allowed(self, rank: int) -> int:
        """Nodes for the copy: those that no unit takes along, else those with which least goes."""
        home = self.home[rank]
        if self.reach[home] != self.all:
            return self.all & ~self.reach[home]
        num_nodes = len(self.reach)
        weights = []
        for node in range(num_nodes):
            together = sum(num_nodes - rack.bit_count() for rack in self.racks if rack >> home & 1 and rack >> node & 1)
            shared = [unit for unit in self.units if unit >> home & 1 and unit >> node & 1]
            mine = sum(num_nodes - unit.bit_count() for unit in shared if unit in self.of_rank[rank])
            theirs = sum(num_nodes - unit.bit_count() for unit in shared if unit not in self.of_rank[rank])
            weights.append((together, mine, theirs) if node != home else (num_nodes**3, 0, 0))
        return sum(1 << node for node, weight in enumerate(weights) if weight == min(weights))

    def has_even(self, per_node: int) -> bool:
        """By augmenting paths, the slow way: whether every copy has a place with at most so many on each node."""
        places = {rank: self.allowed(rank) for rank in self.home}
        at: list[list[int]] = [[] for _ in self.reach]

        def put(rank: int, seen: set[int]) -> bool:
            for node in range(len(at)):
                if places[rank] >> node & 1 and node not in seen:
                    seen.add(node)
                    if len(at[node]) < per_node:
                        at[node].append(rank)
                        return True
                    for other in at[node]:
                        if put(other, seen):
                            at[node].remove(other)
                            at[node].append(rank)
                            return True
            return False

        return all(put(rank, set()) for rank in self.home)


def prove(sizes: Iterable[int]) -> int:
    number = 0
    for tp, pp, dp, per_node in layouts(sizes):
        nodes = nodes_of(tp * pp * dp, per_node)
        if len(nodes) > 1:
            groups = megatron(tp, pp, dp)
            Checker(nodes, groups).check(place(nodes, groups))
            number += 1
    return number


@pytest.mark.slow
def test_every_regular_layout_of_up_to_96_ranks_and_of_the_usual_sizes_up_to_512():
    """No machine and no group, if evicted with all its machines, takes both copies, wherever that is possible at all;
    and every node takes as many copies as it has ranks, wherever that is."""
    assert prove([*range(1, 97), 128, 256, 512]) > 2500


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_every_regular_layout_up_to_512_ranks():
    assert prove(range(1, MAX_RANKS + 1)) > 20_000


def racks_of(num_nodes: int) -> Iterator[list[int]]:
    """Rack of each node: neighbours together, dealt in turn, one much larger than the others, one node alone."""
    for size in (2, 4, 8, 16):
        if size < num_nodes:
            yield [node // size for node in range(num_nodes)]
    for number in (2, 3, 8):
        if number < num_nodes:
            yield [node % number for node in range(num_nodes)]
    if num_nodes > 2:
        yield [0 if node < num_nodes * 3 // 5 else node for node in range(num_nodes)]
        yield [int(node == num_nodes - 1) for node in range(num_nodes)]


def prove_racks(sizes: Iterable[int]) -> Counter[str]:
    """How many layouts, of how many a copy had to stay in its rack for lack of room, or for lack of another."""
    found: Counter[str] = Counter()
    for tp, pp, dp, per_node in layouts(sizes):
        nodes = nodes_of(tp * pp * dp, per_node)
        groups = megatron(tp, pp, dp)
        for numbers in racks_of(len(nodes)):
            racks = {node: f"rack{number}" for node, number in zip(nodes, numbers, strict=True)}
            placement = place(nodes, groups, racks)
            Checker(nodes, groups, racks).check(placement)
            found["all"] += 1
            found["crowded"] += bool(placement.crowded)
            found["weaker"] += bool(placement.weaker)
    return found


def test_no_rack_holds_both_copies_where_that_is_possible_and_no_node_is_overloaded():
    """Of every layout of these sizes, on several ways to deal nodes to racks."""
    found = prove_racks([4, 6, 8, 12, 16, 18, 24, 32])
    assert found["all"] > 500
    assert 0 < found["crowded"] < found["weaker"] < found["all"]


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_no_rack_holds_both_copies_up_to_512_ranks():
    assert prove_racks(range(1, MAX_RANKS + 1))["all"] > 100_000


def test_most_nodes_in_one_rack_do_not_crowd_those_outside():
    nodes = nodes_of(20, 2)
    placement = place(nodes, [], {node: "b" if node == "n9" else "a" for node in nodes})
    assert max(Counter(placement.backups.values()).values()) == 4
    assert Counter(placement.backups.values())["n9"] == 4
    assert len(placement.crowded) == 14
    assert placement.weaker.keys() == placement.crowded
    assert set(placement.weaker.values()) == {"both copies would be lost with rack a"}


def test_the_other_order_of_megatron_is_the_same_by_another_name():
    def shape(groups: Sequence[RankGroup], names: Mapping[str, str]) -> set[tuple[str, tuple[int, ...]]]:
        return {(names[group.title], group.ranks) for group in groups}

    same, swapped = {"tp": "tp", "pp": "pp", "dp": "dp"}, {"tp": "tp", "pp": "dp", "dp": "pp"}
    assert shape(megatron(2, 3, 4, "tp-pp-dp"), same) == shape(megatron(2, 4, 3, "tp-dp-pp"), swapped)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_layout_in_any_order_as_it_is(data):
    tp, pp, dp = (data.draw(st.sampled_from((1, 2, 3, 4, 5, 6, 8))) for _ in range(3))
    per_node = data.draw(
        st.sampled_from([n for n in (1, 2, 4, 8, 16) if tp * pp * dp % n == 0 and tp * pp * dp > n] or [0])
    )
    if per_node:
        groups = megatron(tp, pp, dp, data.draw(st.sampled_from(("tp-dp-pp", "tp-pp-dp"))))
        nodes = nodes_of(tp * pp * dp, per_node)
        Checker(nodes, groups).check(place(nodes, groups))


@settings(max_examples=100, deadline=None)
@given(
    st.integers(2, 10),
    st.lists(st.lists(st.integers(0, 29), min_size=2, max_size=12, unique=True), max_size=8),
    st.lists(st.integers(0, 9), min_size=30, max_size=30),
)
def test_irregular_groups_and_nodes_of_different_size(num_nodes, members, homes):
    ranks: dict[int, list[int]] = {}
    for rank, home in enumerate(homes):
        ranks.setdefault(home % num_nodes, []).append(rank)
    nodes = {f"n{home}": mine for home, mine in sorted(ranks.items())}
    groups = [RankGroup(title=f"g{i}", ranks=tuple(sorted(group))) for i, group in enumerate(members)]
    placement = place(nodes, groups)
    if len(nodes) < 2:
        assert placement == Placement(backups={}, weaker={})
    else:
        Checker(nodes, groups).check(placement, is_even=False)


def test_the_example_of_byterobust():
    """Figure 9: TP 2, PP 4, DP 2 on machines of two ranks. A copy outside of its own TP, PP and DP group."""
    groups = megatron(2, 4, 2)
    placement = place(nodes_of(16, 2), groups)
    for group in groups:
        for rank in group.ranks:
            homes = {other // 2 for other in group.ranks}
            assert int(placement.backups[rank][1:]) not in homes
    assert placement.weaker == {}


def test_one_group_of_all_ranks_is_said():
    placement = place(nodes_of(8, 2), [RankGroup(title="dp", ranks=tuple(range(8)))])
    assert all(placement.backups[rank] != f"n{rank // 2}" for rank in range(8))
    assert placement.weaker[5] == "both copies would be lost with its group dp, which spans every node"


def test_one_node_has_no_copies():
    assert place({"n0": [0, 1]}, []) == Placement(backups={}, weaker={})


def test_racks_count_where_they_are_known():
    nodes, racks = nodes_of(8, 1), {f"n{i}": "a" if i < 4 else "b" for i in range(8)}
    placement = place(nodes, [], racks)
    assert all((rank < 4) != (int(node[1:]) < 4) for rank, node in placement.backups.items())
    assert placement.weaker == {}
    partly = place(nodes, [], {"n0": "a", "n1": "a"})
    assert partly.backups[0] != "n1"
    alone = place(nodes_of(2, 1), [], {"n0": "a", "n1": "a"})
    assert "rack a" in alone.weaker[0]


def test_a_rack_is_shared_last():
    """Where something has to be shared, it is the group, not the rack."""
    pairs = [RankGroup(title="pp", ranks=(0, 1)), RankGroup(title="pp", ranks=(2, 3))]
    placement = place(nodes_of(4, 1), [*pairs, RankGroup(title="ep", ranks=(0, 3))], {"n0": "a", "n2": "a"})
    assert placement.backups[0] in ("n1", "n3")
    assert "pp" in placement.weaker[0] or "ep" in placement.weaker[0]


def test_it_is_the_same_every_time():
    groups = megatron(2, 4, 6)
    assert place(nodes_of(48, 4), groups) == place(nodes_of(48, 4), list(reversed(groups)))


def test_a_hundred_thousand_ranks():
    """Twelve thousand machines of eight ranks; generous, for busy machines: 0.2 s of processor time are usual."""
    nodes, groups = nodes_of(100_000, 8), megatron(8, 10, 1250)
    began = time.process_time()
    placement = place(nodes, groups)
    assert time.process_time() - began < 5.0
    assert placement.weaker == {}
    assert Counter(placement.backups.values()) == dict.fromkeys(nodes, 8)
