"""`everstep fabric plan`: what it counts is what it draws, and what it draws is a network that could be built."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everstep.cli.main import main
from everstep.fabric.plan.build import build
from everstep.fabric.plan.clos import Plan, Wanted, plan_clos
from everstep.fabric.topology.check import check_topology
from everstep.fabric.topology.cut import without
from everstep.fabric.topology.graph import Graph
from everstep.fabric.topology.values import FabricError


@given(
    chips=st.integers(1, 3000),
    rails=st.sampled_from([1, 2, 4, 8]),
    radix=st.sampled_from([8, 16, 32, 64]),
    oversubscription=st.sampled_from([1.0, 1.5, 2.0, 3.0]),
)
@settings(max_examples=40)
def test_every_plan_can_be_built(chips: int, rails: int, radix: int, oversubscription: float) -> None:
    try:
        plan = plan_clos(Wanted(chips=chips, rails=rails, radix=radix, oversubscription=oversubscription))
    except FabricError as error:
        assert "three tiers" in str(error)  # noqa: PT017
        return
    topology = build(plan)
    graph = Graph(topology)
    ports = Counter(end.node for cable in topology.cables for end in (cable.one, cable.other))
    assert max((ports[switch.name] for switch in topology.switches), default=0) <= radix
    assert len(topology.hosts) == plan.num_hosts
    assert plan.num_hosts * rails >= chips
    assert len(topology.switches) == plan.num_switches
    assert len(topology.cables) == plan.host_cables + plan.switch_cables
    assert graph.num_tiers == plan.num_tiers
    graph.require_connected()
    leaves = Counter((host, int(name.split("-")[1])) for host in range(graph.num_hosts)
                     for name in {graph.names[leaf] for leaf, _ in graph.leaves_of(host)})  # fmt: skip
    assert set(leaves.values()) == {1}, "one leaf per rail"
    assert plan.oversubscription <= oversubscription + 1e-9
    assert not [each for each in check_topology(topology, oversubscription=oversubscription).findings if each.is_error]


def counts(plan: Plan) -> tuple[int, int, int, int]:
    return plan.num_tiers, plan.num_leaves, plan.num_spines, plan.num_cores


def test_known_sizes() -> None:
    """Radix R holds R*R/2 hosts on two tiers and R*R*R/4 on three; 64 servers of 8 rails are a group of 512 chips."""
    assert counts(plan_clos(Wanted(chips=8 * 64 * 64 // 2, radix=64))) == (2, 512, 256, 0)
    assert counts(plan_clos(Wanted(chips=8 * 64 * 64 // 2 + 8, radix=64)))[0] == 3
    assert plan_clos(Wanted(chips=8 * 16**3 // 4, radix=16)).num_hosts == 1024
    with pytest.raises(FabricError, match="three tiers of 16 ports hold 8192"):
        plan_clos(Wanted(chips=8 * 16**3 // 4 + 8, radix=16))
    group = plan_clos(Wanted(chips=16384, radix=128))
    assert group.down * 8 == 512
    assert plan_clos(Wanted(chips=131_072, rails=1, chips_per_host=1, radix=512)).num_tiers == 2


def test_a_lost_leaf_disconnects_no_other_rail() -> None:
    topology = build(plan_clos(Wanted(chips=512, rails=4, radix=16)))
    cut = Graph(without(topology, ["leaf0-1"]))
    cut.require_connected()
    assert {len(cut.leaves_of(host)) for host in range(8)} == {3}


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--chips", "0"], "--chips 0"),
        (["--chips", "8", "--radix", "7"], "--radix 7"),
        (["--chips", "8", "--oversubscription", "0:1"], "--oversubscription '0:1'"),
        (["--chips", "8", "--speed", "-3"], "--speed: speed '-3'"),
        (["--chips", "8", "--price", "leaf=1"], "--price 'leaf=1'"),
        (["--chips", "900000", "--radix", "16"], "three tiers of 16 ports hold"),
    ],
)
def test_bad_flags(flags: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fabric", "plan", *flags]) == 2
    assert text in capsys.readouterr().err


def test_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fabric", "plan", "--chips", "16384", "--rails", "8", "--oversubscription", "1:1"]) == 0
    page = capsys.readouterr().out
    assert "2,048 hosts, 8 rails: 2 tiers" in page
    assert "3,276.8 Tbit/s" in page
    assert "cost              not known" in page
    prices = ["--price", "switch=10", "--price", "cable=1", "--price", "nic=2"]
    assert main(["fabric", "plan", "--chips", "16384", *prices]) == 0
    assert "73,216" in capsys.readouterr().out, "768*10 + 32768*1 + 16384*2"


def test_breaking_what_is_not_there() -> None:
    with pytest.raises(FabricError, match="cannot break 'leaf9-9'"):
        without(build(plan_clos(Wanted(chips=64, rails=2, radix=8))), ["leaf9-9"])
