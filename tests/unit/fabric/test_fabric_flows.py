"""Flows: fair rates against slow water filling and the definition, hashing and collectives against closed forms."""

import itertools
import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from everstep.cli.main import main
from everstep.fabric.flows.fair import fair_rates
from everstep.fabric.flows.network import Network
from everstep.fabric.flows.routes import Router
from everstep.fabric.flows.simulate import Request, all_to_all_s, ring_all_reduce_s, simulate
from everstep.fabric.plan.build import build
from everstep.fabric.plan.clos import Wanted, plan_clos
from everstep.fabric.topology.cut import without
from everstep.fabric.topology.graph import Graph
from everstep.fabric.topology.values import FabricError

sys.path.insert(0, str(Path(__file__).parents[3] / "bench"))
from fabrics.two_tiers import two_tiers


def water_filling(capacity: list[float], paths: list[dict[int, float]], demand: list[float]) -> list[float]:
    """One bottleneck after the other, as the definition says."""
    rates = [math.nan] * len(paths)
    left = list(capacity)
    todo = set(range(len(paths)))
    while todo:
        shares = {link: left[link] / sum(paths[f].get(link, 0.0) for f in todo)
                  for link in {link for f in todo for link in paths[f]}}  # fmt: skip
        level = min([*shares.values(), *(demand[f] for f in todo)])
        fixed = {f for f in todo if demand[f] <= level or any(shares[link] <= level * (1 + 1e-12) for link in paths[f])}
        for f in fixed:
            rates[f] = level
            for link, weight in paths[f].items():
                left[link] = max(0.0, left[link] - level * weight)
        todo -= fixed
    return rates


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=150)
def test_rates_are_those_of_water_filling(seed: int) -> None:
    draw = np.random.default_rng(seed)
    num_links, num_flows = int(draw.integers(1, 8)), int(draw.integers(1, 12))
    capacity = draw.integers(1, 20, num_links).astype(float)
    weights = draw.choice([1.0, 0.5, 0.25], (num_flows, num_links))
    paths = [{int(link): float(weights[f, link]) for link in draw.permutation(num_links)[: draw.integers(1, 4)]}
             for f in range(num_flows)]  # fmt: skip
    demand = np.where(draw.random(num_flows) < 0.3, draw.integers(1, 5, num_flows).astype(float), np.inf)
    entries = [(f, link, weight) for f, path in enumerate(paths) for link, weight in path.items()]
    flow, link, weight = (np.array(column) for column in zip(*entries, strict=True))
    rates = fair_rates(capacity, flow, link, num_flows, weight=weight, demand=demand)
    assert rates == pytest.approx(water_filling(capacity.tolist(), paths, demand.tolist()), rel=1e-6)
    load = np.bincount(link, weights=rates[flow] * weight, minlength=num_links)
    assert (load <= capacity * (1 + 1e-6)).all(), "no link above its capacity"
    for f in range(num_flows):  # the definition: demand, or a full link on which no flow has more
        full = [at for at in paths[f] if load[at] >= capacity[at] * (1 - 1e-6)]
        others = [max(rates[g] for g in range(num_flows) if at in paths[g]) for at in full]
        assert rates[f] >= demand[f] * (1 - 1e-6) or any(rates[f] >= most * (1 - 1e-6) for most in others)


def no_collision(flows: int, links: int) -> float:
    """Probability that each flow has a link of its own."""
    return math.prod(1 - each / links for each in range(flows))


def busy_links(flows: int, links: int) -> float:
    """Expected number of links with at least one flow."""
    return links * (1 - (1 - 1 / links) ** flows)


def mean_throughput(flows: int, links: int) -> float:
    """Of line rate, when each flow could fill a link and only these links bind."""
    return busy_links(flows, links) / flows


def labels_for_coverage(links: int, probability: float) -> int:
    """Random source ports until all equal paths were used with that probability (each path by itself)."""
    if links <= 1:
        return 1
    missed = 1 - probability ** (1 / links)
    return math.ceil(math.log(missed) / math.log((links - 1) / links))


def speed_up(share: float, before: float, after: float) -> float:
    """Of a job that communicates that share of its time, when its bandwidth goes from `before` to `after`."""
    return 1 / ((1 - share) + share * before / after)


@pytest.mark.parametrize(("flows", "links"), [(4, 8), (2, 4), (8, 8), (16, 64), (64, 64)])
def test_hash_collisions_are_those_of_the_closed_form(flows: int, links: int) -> None:
    network = Network(Graph(two_tiers(2, flows, links)))
    trials = 100_000 if flows <= 4 else 4_000
    out = np.array([network.nics[host][0] for host in range(flows)])
    into = np.array([network.nics[host + flows][0] ^ 1 for host in range(flows)])
    keys = np.arange(trials * flows, dtype=np.uint64)
    paths = Router(network, seed=1).route(np.tile(out, trials), np.tile(into, trials), keys, "ecmp")
    up = (network.tiers[network.tail] == 1) & (network.tiers[network.head] == 2)
    chosen = np.empty(trials * flows, dtype=np.int64)
    on_way = up[paths.link]
    chosen[paths.flow[on_way]] = paths.link[on_way]
    table = np.sort(chosen.reshape(trials, flows), axis=1)
    busy = 1 + (np.diff(table, axis=1) != 0).sum(axis=1)
    assert busy.mean() == pytest.approx(busy_links(flows, links), rel=0.01)
    if flows <= 4:
        assert (busy == flows).mean() == pytest.approx(no_collision(flows, links), rel=0.01)


def test_throughput_when_only_the_uplinks_bind() -> None:
    """The way down is made wide: then each busy uplink carries a whole line rate."""
    network = Network(Graph(two_tiers(2, 64, 64)))
    network.capacity[network.tiers[network.tail] == 2] = 1e15
    order = [host + half * 64 for host in range(64) for half in (0, 1)]
    means = [simulate(network, order, Request(seed=seed)).mean for seed in range(60)]
    assert np.mean(means) == pytest.approx(mean_throughput(64, 64), rel=0.01)


def test_published_values_of_the_closed_forms() -> None:
    assert no_collision(4, 8) == pytest.approx(0.410, abs=5e-4)
    assert busy_links(8, 8) == pytest.approx(5.251, abs=5e-4)
    assert mean_throughput(64, 64) == pytest.approx(0.635, abs=5e-4)
    assert [labels_for_coverage(links, 0.9) for links in (1, 4, 8, 16)] == [1, 13, 33, 78]
    assert speed_up(0.35, 0.703, 0.95) == pytest.approx(1.10, abs=0.005)
    assert speed_up(0.64, 0.703, 0.95) == pytest.approx(1.20, abs=0.005)


def test_more_connections_collide_less_and_equal_parts_gain_little() -> None:
    """Beside the published table: 16 leaves of 64 NICs, 64 spines, a random ring."""
    network = Network(Graph(two_tiers(16, 64, 64)))
    order = np.random.default_rng(3).permutation(1024).tolist()
    found = {
        (n, split): simulate(network, order, Request(connections=n, is_split=split)).mean
        for n, split in ((1, False), (2, False), (16, False), (16, True))
    }
    for (n, split), published in {(1, False): 0.548, (2, False): 0.703, (16, False): 0.986, (16, True): 0.691}.items():
        assert found[n, split] == pytest.approx(published, rel=0.05)


@pytest.mark.parametrize("routing", ["ecmp", "adaptive", "spray"])
def test_a_ring_in_the_order_of_the_leaves_has_line_rate(routing: str) -> None:
    network = Network(Graph(two_tiers(4, 8, 8)))
    outcome = simulate(network, range(32), Request(routing=routing, num_bytes=1e9))
    assert outcome.slowest == pytest.approx(1.0)
    assert outcome.seconds == pytest.approx(ring_all_reduce_s(32, 1e9, 1e9))


def test_spraying_never_collides_and_adaptive_lies_between() -> None:
    network = Network(Graph(two_tiers(8, 16, 16)))
    order = np.random.default_rng(1).permutation(128).tolist()
    routings = ("ecmp", "adaptive", "spray")
    hashed, adaptive, spray = (simulate(network, order, Request(routing=each)).mean for each in routings)
    assert spray == pytest.approx(1.0)
    assert hashed < adaptive < spray


def test_one_hash_for_all_switches_polarises() -> None:
    """Of a second tier of 4 only one spine's worth is used: a switch gets only flows that chose alike before."""
    network = Network(Graph(build(plan_clos(Wanted(chips=128, rails=1, chips_per_host=1, radix=8)))))
    order = np.random.default_rng(1).permutation(128).tolist()
    used = [simulate(network, order, Request(connections=16, same_hash=same)).busy_links for same in (False, True)]
    assert used[1] < used[0] * 0.7


def test_all_to_all_on_a_wide_network() -> None:
    network = Network(Graph(two_tiers(4, 4, 4)))
    outcome = simulate(network, range(16), Request(pattern="all-to-all", routing="spray"))
    assert outcome.slowest == pytest.approx(1.0)
    assert outcome.seconds == pytest.approx(all_to_all_s(16, 1e9, 1e9))


def test_a_failed_leaf_leaves_its_rail_out_and_a_failed_spine_does_not() -> None:
    topology = build(plan_clos(Wanted(chips=512, rails=4, radix=16)))
    leaf = Network(Graph(without(topology, ["leaf0-1"])))
    outcome = simulate(leaf, range(128), Request())
    assert (outcome.rails_used, outcome.rails_left_out) == ((0, 2, 3), (1,))
    assert outcome.seconds == pytest.approx(outcome.ideal_s * 4 / 3)
    spine = Network(Graph(without(topology, ["spine0-0-0"])))
    assert simulate(spine, range(128), Request()).rails_left_out == ()


def test_paths_go_up_and_then_down_and_end_where_they_should() -> None:
    network = Network(Graph(build(plan_clos(Wanted(chips=256, rails=2, chips_per_host=2, radix=8)))))
    draw = np.random.default_rng(0)
    one, other = draw.integers(0, 128, (2, 500))
    one, other = one[one != other], other[one != other]
    out = np.array([network.nics[host][0] for host in one])
    into = np.array([network.nics[host][0] ^ 1 for host in other])
    for routing in ("ecmp", "adaptive"):
        paths = Router(network).route(out, into, np.arange(len(out), dtype=np.uint64), routing)
        for flow in range(len(out)):
            links = paths.link[paths.flow == flow].tolist()
            whole = [links[0], *links[2:], links[1]]
            assert all(network.head[a] == network.tail[b] for a, b in itertools.pairwise(whole))
            steps = np.sign(np.diff([network.tiers[network.tail[whole[0]]], *network.tiers[network.head[whole]]]))
            assert steps.tolist() == sorted(steps.tolist(), reverse=True)
            assert len(set(whole)) == len(whole)


def test_sprayed_shares_add_up() -> None:
    network = Network(Graph(build(plan_clos(Wanted(chips=256, rails=1, chips_per_host=2, radix=8)))))
    out, into = np.array([network.nics[0][0]]), np.array([network.nics[100][0] ^ 1])
    paths = Router(network).route(out, into, np.array([0], dtype=np.uint64), "spray")
    into_node: dict[int, float] = {}
    for link, weight in zip(paths.link.tolist(), paths.weight.tolist(), strict=True):
        into_node[network.head[link]] = into_node.get(network.head[link], 0.0) + weight
    assert into_node[100] == pytest.approx(1.0)
    assert into_node[network.tail[into[0]]] == pytest.approx(1.0)


def test_bad_requests(capsys: pytest.CaptureFixture[str]) -> None:
    lab = two_tiers(2, 2, 2)
    unknown = replace(lab, cables=(replace(lab.cables[0], one=replace(lab.cables[0].one, bps=None)), *lab.cables[1:]))
    with pytest.raises(FabricError, match="its speed is not known"):
        Network(Graph(unknown))
    with pytest.raises(FabricError, match="one host sends nothing"):
        simulate(Network(Graph(lab)), [0], Request())
    with pytest.raises(FabricError, match="no path from leaf0 to leaf1"):
        simulate(Network(Graph(without(lab, ["spine0", "spine1"]))), range(4), Request())
    for flags in ("", "--chips 64 --connections 0", "--chips 64 --hosts x7", "--chips 64 --fail y"):
        assert main(["fabric", "simulate", *flags.split()]) == 2
        assert capsys.readouterr().err.count("\n") == 1


def test_the_verb(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fabric", "simulate", "--chips", "1024", "--radix", "32", "--order", "random", "--json"]) == 0
    outcome = json.loads(capsys.readouterr().out)
    assert outcome["num_flows"] == 1024
    assert outcome["seconds"] > outcome["ideal_s"]
    assert main(["fabric", "simulate", "--chips", "1024", "--radix", "32"]) == 0
    assert "1.00 times" in capsys.readouterr().out
