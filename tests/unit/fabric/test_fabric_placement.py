"""Placement: the optimum on small networks, never worse than Slurm's tree on any, and outputs that others read."""

import itertools
import json
import os
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everstep.cli.main import main
from everstep.fabric.placement import slurm_tree
from everstep.fabric.placement.cost import Costs
from everstep.fabric.placement.outputs import node_labels, rank_file, slurm_topology
from everstep.fabric.placement.place import place
from everstep.fabric.placement.traffic import Groups, ring, traffic_of
from everstep.fabric.plan.build import build
from everstep.fabric.plan.clos import Wanted, plan_clos
from everstep.fabric.readers.find import read_topology
from everstep.fabric.topology.graph import Graph
from everstep.fabric.topology.tree import Tree
from everstep.fabric.topology.values import FabricError


def tree(sizes: list[list[int]]) -> Graph:
    """Pods of leaves of hosts."""
    found = Tree(source="tree")
    pods = []
    number = 0
    for pod, leaves in enumerate(sizes):
        names = []
        for leaf, size in enumerate(leaves):
            names.append(f"leaf{pod}-{leaf}")
            found.add(names[-1], children=[], hosts=[f"n{number + each}" for each in range(size)])
            number += size
        pods.append(f"pod{pod}")
        found.add(pods[-1], children=names, hosts=[])
    found.add("core", children=pods, hosts=[])
    return Graph(found.topology())


@given(st.integers(0, 10_000))
@settings(max_examples=40)
def test_small_placements_are_optimal(seed: int) -> None:
    draw = random.Random(seed)
    graph = tree([[draw.randint(1, 3) for _ in range(draw.randint(1, 2))] for _ in range(2)])
    free = draw.sample(range(graph.num_hosts), draw.randint(2, min(6, graph.num_hosts)))
    num = draw.randint(2, min(5, len(free)))
    shapes = {4: [Groups(dp=2, pp=2), Groups(ep=2, dp=2), Groups(pp=4)], 5: [Groups(dp=5)], 3: [Groups(pp=3)]}
    traffic = draw.choice([ring(num), *(traffic_of(groups, 1) for groups in shapes.get(num, []))])
    costs = Costs(graph)
    best = min(costs.of(traffic, hosts) for hosts in itertools.permutations(free, num))
    found = place(graph, traffic, free)
    assert found.cost.bottleneck == pytest.approx(best.bottleneck)
    assert found.cost.crossing == pytest.approx(best.crossing)
    assert found.is_optimal
    assert found.bound <= best.bottleneck * (1 + 1e-9)
    assert len(set(found.hosts)) == num
    assert {graph.host(name) for name in found.hosts} <= set(free)


@given(st.integers(0, 10_000))
@settings(max_examples=25)
def test_never_worse_than_slurm_and_never_below_the_bound(seed: int) -> None:
    draw = random.Random(seed)
    graph = tree([[draw.randint(2, 12) for _ in range(draw.randint(1, 5))] for _ in range(draw.randint(1, 3))])
    free = sorted(draw.sample(range(graph.num_hosts), max(2, graph.num_hosts * 2 // 3)))
    groups = draw.choice([Groups(dp=4, pp=2), Groups(tp=8, dp=8), Groups(tp=8, dp=4, pp=2), Groups(tp=16, dp=2)])
    sized = traffic_of(groups, 8 if groups.tp >= 8 else 1)
    traffic = sized if sized.num <= len(free) else ring(draw.randint(2, len(free)))
    found = place(graph, traffic, free)
    assert not found.slurm.is_better_than(found.cost)
    assert found.bound <= found.cost.bottleneck * (1 + 1e-9)
    assert found.cost == Costs(graph).of(traffic, [graph.host(name) for name in found.hosts])


def test_narrow_leaves_are_left_out_where_wide_ones_suffice() -> None:
    """Found beside a real Slurm, which happened to do so."""
    graph = tree([[3, 7, 7, 3], [8, 3, 8], [2, 7, 5, 6]])
    free = [
        1,
        2,
        3,
        7,
        8,
        9,
        10,
        13,
        14,
        17,
        18,
        *range(21, 27),
        29,
        *range(33, 39),
        40,
        42,
        43,
        46,
        48,
        49,
        *range(53, 57),
    ]
    slurms = [10, 13, 14, *range(21, 27), *range(33, 39), 42, 43, 46, *range(53, 57)]
    traffic = ring(22)
    found = place(graph, traffic, free)
    assert not Costs(graph).of(traffic, slurms).is_better_than(found.cost)
    assert found.is_optimal


@pytest.mark.parametrize(
    ("sizes", "free", "slurms"),
    [
        (
            [[7, 5, 6, 9], [6, 3, 6, 5]],
            [*range(5), 8, 9, 12, 16, 17, 18, 19, 21, 22, 25, 28, *range(30, 47)],
            [*range(5), 18, 19, 21, 22, 25, *range(36, 42)],
        ),
        (
            [[5, 5, 4, 2], [9, 5, 9], [4, 9]],
            [*range(12), 13, *range(15, 23), *range(24, 35), 36, 37, 40, 41, *range(43, 49), 50, 51],
            [*range(16, 23), 24, *range(43, 49), 50, 51],
        ),
    ],
)
def test_few_leaves_of_two_pods_are_better_than_many_of_one(
    sizes: list[list[int]], free: list[int], slurms: list[int]
) -> None:
    graph = tree(sizes)
    found = place(graph, ring(16), free)
    assert not Costs(graph).of(ring(16), slurms).is_better_than(found.cost)


def test_rings_are_kept_inside_groups_where_slurm_cuts_them() -> None:
    """Leaves of nine, rings of eight: the ninth host of a leaf would tear a ring apart."""
    graph = tree([[9, 9, 9, 9]])
    traffic = traffic_of(Groups(tp=8, dp=8, pp=3), 8)
    found = place(graph, traffic, range(36))
    assert found.cost.bottleneck < found.slurm.bottleneck / 100
    for first in range(0, 24, 8):
        leaves = {graph.levels[graph.host(name)][0] for name in found.hosts[first : first + 8]}
        assert len(leaves) == 1


def test_slurm_takes_the_leaf_that_fits_best() -> None:
    graph = tree([[4, 2, 3]])
    assert slurm_tree.pick(graph, range(9), 3) == [6, 7, 8]
    assert slurm_tree.pick(graph, range(9), 6) == [0, 1, 2, 3, 4, 5]
    assert slurm_tree.pick(graph, range(9), 10) == []


def test_traffic_inside_a_host_is_free() -> None:
    traffic = traffic_of(Groups(tp=8, dp=4, dp_amount=10.0), 8)
    assert {(edge.source, edge.target): edge.amount for edge in traffic.edges} == {
        (0, 1): pytest.approx(8 * 15.0), (1, 2): pytest.approx(120.0), (2, 3): pytest.approx(120.0),
        (3, 0): pytest.approx(120.0)}  # fmt: skip
    with pytest.raises(FabricError, match="do not fill hosts"):
        traffic_of(Groups(tp=3), 8)


def test_many_hosts() -> None:
    graph = Graph(build(plan_clos(Wanted(chips=2048, rails=1, chips_per_host=1, radix=64))))
    found = place(graph, ring(1500), random.Random(1).sample(range(2048), 1800))
    assert found.is_optimal
    assert not found.slurm.is_better_than(found.cost)


@pytest.mark.parametrize("name", ["nvl72", "dual-xclr-irregular", "medium", "small-tree"])
def test_public_models(name: str) -> None:
    path = Path(os.environ.get("EVERSTEP_TOPOLOGIES", "")) / f"{name}.yaml"
    if not path.exists():
        pytest.skip("EVERSTEP_TOPOLOGIES names no folder with topograph's public models")
    graph = Graph(read_topology(path))
    draw = random.Random(name)
    for _ in range(2):
        free = draw.sample(range(graph.num_hosts), draw.randint(2, graph.num_hosts))
        found = place(graph, ring(draw.randint(2, len(free))), free)
        assert not found.slurm.is_better_than(found.cost)
        assert found.cost.bottleneck <= found.bound * 1.3


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    graph = tree([[2, 2], [2]])
    path = tmp_path / "topology.conf"
    path.write_text(slurm_topology(graph))
    again = Graph(read_topology(path))
    assert again.topology.host_names() == graph.topology.host_names()
    assert [len(set(column)) for column in zip(*again.levels, strict=True)] == [3, 2, 1]
    labels = [line.split() for line in node_labels(graph).splitlines()]
    nodes = [
        {"metadata": {"name": words[3], "labels": dict(each.split("=") for each in words[5:])}} for words in labels
    ]
    other = tmp_path / "nodes.json"
    other.write_text(json.dumps({"kind": "List", "items": nodes}))
    from_labels = Graph(read_topology(other))
    assert [len(set(column)) for column in zip(*from_labels.levels, strict=True)] == [3, 2, 1]


def test_the_rank_file_has_every_rank_once() -> None:
    assert rank_file(["b", "a"], 2) == "rank 0=b slot=0\nrank 1=b slot=1\nrank 2=a slot=0\nrank 3=a slot=1\n"


def test_the_verb(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "topology.conf"
    path.write_text("SwitchName=a Nodes=n[0-3]\nSwitchName=b Nodes=n[4-7]\nSwitchName=c Switches=a,b\n")
    assert main(["fabric", "place", str(path), "--nodes", "4", "--free", "n[1-7]"]) == 0
    assert "n[4-7]" in capsys.readouterr().out
    assert main(["fabric", "place", str(path), "--nodes", "3", "--output", "hosts"]) == 0
    assert capsys.readouterr().out == "n0\nn1\nn2\n"
    assert main(["fabric", "place", str(path), "--nodes", "3", "--output", "slurm"]) == 0
    assert capsys.readouterr().out == "--nodes=3 --nodelist=n[0-2]\n"
    assert main(["fabric", "place", str(path), "--nodes", "3", "--output", "kueue"]) == 0
    assert '"kueue.x-k8s.io/podset-required-topology": "fabric.topograph.run/tier-0"' in capsys.readouterr().out
    for flags in (["--nodes", "9"], ["--nodes", "0"], ["--nodes", "2", "--dp", "2"], ["--nodes", "1", "--free", "n9"]):
        assert main(["fabric", "place", str(path), *flags]) == 2
        assert capsys.readouterr().err.count("\n") == 1
