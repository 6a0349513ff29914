"""Losses on known paths: the right link or host is named, sets that cannot be told apart are named whole."""

import itertools
import random
from pathlib import Path

import msgspec
import pytest

from everstep.cli.main import main
from everstep.fabric.locate.blame import Suspect, blame
from everstep.fabric.locate.observations import Link, Seen, background, merged
from everstep.fabric.probing.coverage import Flow, plan_probes

HOSTS, LEAVES, SPINES = 16, 4, 2
NAMES = frozenset(f"n{host}" for host in range(HOSTS))


def path(one: int, other: int, port: int) -> tuple[str, ...]:
    leaves = f"leaf{one * LEAVES // HOSTS}", f"leaf{other * LEAVES // HOSTS}"
    if leaves[0] == leaves[1]:
        return (f"n{one}", leaves[0], f"n{other}")
    return (
        f"n{one}",
        leaves[0],
        f"spine{random.Random(f'{one}-{other}-{port}').randrange(SPINES)}",
        leaves[1],
        f"n{other}",
    )


def all_paths(ports: int = 4) -> dict[Flow, tuple[str, ...]]:
    pairs = itertools.permutations(range(HOSTS), 2)
    return {(f"n{a}", f"n{b}", port): path(a, b, port) for a, b in pairs for port in range(ports)}


PATHS = all_paths()
FLOWS = plan_probes(PATHS, least=6).flows


def losses(loss: dict[Link, float], seed: int, sent: int = 60, noise: float = 0.0) -> list[Seen]:
    """10 s at six packets a second on each chosen flow."""
    draw = random.Random(seed)
    found = []
    for flow in FLOWS:
        nodes = PATHS[flow]
        comes = 1.0 - noise
        for link in itertools.pairwise(nodes):
            comes *= 1.0 - loss.get(link, 0.0)
        found.append(Seen(nodes=nodes, sent=sent, bad=sum(draw.random() >= comes for _ in range(sent))))
    return found


LINKS = sorted({link for nodes in PATHS.values() for link in itertools.pairwise(nodes)})


def both_ways(one: str, other: str, rate: float) -> dict[Link, float]:
    return {(one, other): rate, (other, one): rate}


def names(faults: object) -> list[set[str]]:
    return [{suspect.name for suspect in fault.suspects} for fault in faults]  # type: ignore[attr-defined]


@pytest.mark.parametrize("rate", [0.05, 0.3, 1.0])
def test_one_link_one_way(rate: float) -> None:
    right = 0
    for seed, link in enumerate(LINKS[::4]):
        verdict = blame(losses({link: rate}, seed), NAMES)
        right += len(verdict.faults) == 1 and f"{link[0]} > {link[1]}" in names(verdict.faults)[0]
        assert len(verdict.faults) <= 2
    assert right >= 0.98 * len(LINKS) / 4


def test_a_cable_a_switch_and_a_host() -> None:
    cable = blame(losses(both_ways("leaf1", "spine0", 0.05), 1), NAMES)
    assert names(cable.faults) == [{"leaf1 - spine0"}]
    switch = blame(losses({link: 0.3 for link in LINKS if "spine1" in link}, 2), NAMES)
    assert names(switch.faults) == [{"spine1"}]
    host = blame(losses(both_ways("n5", "leaf1", 0.1), 3), NAMES)
    assert names(host.faults) == [{"leaf1 - n5", "n5"}], "a host with one NIC cannot be told from its cable"
    assert host.faults[0].confidence > 0.95


@pytest.mark.parametrize("rates", [(0.45, 0.7), (0.3, 0.8), (0.9, 0.5)])
def test_a_cable_that_loses_more_one_way_is_one_fault(rates: tuple[float, float]) -> None:
    for seed in range(4):
        seen = losses({("leaf1", "spine1"): rates[0], ("spine1", "leaf1"): rates[1]}, seed)
        (found,) = names(blame(seen, NAMES).faults)
        assert found == {"leaf1 - spine1"}


def test_two_faults_at_once() -> None:
    right = 0
    draw = random.Random(5)
    for seed in range(10):
        one, other = draw.sample(LINKS, 2)
        verdict = blame(losses({one: 0.05, other: 0.3}, seed, sent=120), NAMES)
        found = set().union(*names(verdict.faults)) if verdict.faults else set()
        right += len(verdict.faults) == 2 and {f"{a} > {b}" for a, b in (one, other)} <= found
    assert right == 10


def test_a_healthy_network_is_not_blamed() -> None:
    for seed in range(60):
        assert blame(losses({}, seed, noise=5e-5), NAMES).faults == ()


def test_little_is_unknown_and_not_healthy() -> None:
    few = blame(losses({LINKS[0]: 0.01}, 1, sent=5), NAMES)
    assert few.faults == ()
    assert few.smallest_rate > 0.05, "what could not have been seen is said"


def test_what_cannot_be_told_apart_is_named_whole() -> None:
    """One path only: any of its parts may be it."""
    verdict = blame([Seen(nodes=("n0", "leaf0", "n1"), sent=100, bad=40)], NAMES)
    (fault,) = verdict.faults
    assert {suspect.name for suspect in fault.suspects} >= {"n0 > leaf0", "leaf0 > n1", "leaf0", "n0", "n1"}
    assert Suspect(kind="switch", name="leaf0") in fault.suspects


def test_a_peer_that_lies_does_not_blame_others() -> None:
    """Counts that cannot be are left out and named; a host that reports losses that are none is blamed itself."""
    seen = losses({}, 1)
    impossible = [
        Seen(nodes=each.nodes, sent=each.sent, bad=each.sent + 5) if each.nodes[-1] == "n3" else each for each in seen
    ]
    verdict = blame(impossible, NAMES)
    assert verdict.faults == ()
    assert set(verdict.impossible) == {"n3"}
    liar = [
        Seen(nodes=each.nodes, sent=each.sent, bad=each.sent // 2) if each.nodes[-1] == "n3" else each for each in seen
    ]
    (fault,) = blame(liar, NAMES).faults
    assert all("n3" in suspect.name for suspect in fault.suspects)


def test_every_link_is_covered_and_the_checker_is_independent() -> None:
    plan = plan_probes(PATHS, least=4)
    assert plan.thin == ()
    assert plan.num_links == len(LINKS)
    counts = {link: [flow for flow in plan.flows if link in set(itertools.pairwise(PATHS[flow]))] for link in LINKS}
    assert min(len(flows) for flows in counts.values()) >= 4
    between = [link for link in LINKS if not any(node in NAMES for node in link)]
    assert min(len({flow[0] for flow in counts[link]}) for link in between) >= 2
    assert len(plan.flows) < len(PATHS) / 4


def test_links_that_no_flow_reaches_often_are_named() -> None:
    only = {flow: nodes for flow, nodes in PATHS.items() if flow[0] == "n0" and flow[2] == 0}
    plan = plan_probes(only, least=4)
    assert plan.thin


def test_what_is_everywhere_is_no_fault_of_a_link() -> None:
    """Busy hosts answer two of a hundred late; one link on top of that is slow."""
    seen = late({("leaf1", "spine0"): 0.6}, 1, noise=0.02)
    verdict = blame(seen, NAMES)
    assert names(verdict.slow) == [{"leaf1 > spine0"}]
    assert verdict.faults == ()
    assert blame(late({}, 2, noise=0.02), NAMES).slow == ()
    assert blame(late(both_ways("n3", "leaf0", 0.02), 3, noise=0.0), NAMES).slow == (), "one host was late for a moment"
    assert blame(late({}, 2, noise=0.6), NAMES).slow == (), "a host that got no processor"
    assert blame(late({}, 2, noise=1.0), NAMES).slow == ()
    assert background([]) == 0.0


def late(rates: dict[Link, float], seed: int, noise: float) -> list[Seen]:
    return [Seen(nodes=s.nodes, sent=s.sent, bad=0, late=s.bad) for s in losses(rates, seed, noise=noise)]


def test_more_late_packets_than_came_cannot_be() -> None:
    verdict = blame([Seen(nodes=("n0", "leaf0", "n1"), sent=10, bad=8, late=3)], NAMES)
    assert verdict.impossible == {"n1": 1}


def test_windows_are_added_up() -> None:
    one = [Seen(nodes=("a", "b"), sent=10, bad=1, late=3)]
    assert merged([one, one, []]) == [Seen(nodes=("a", "b"), sent=20, bad=2, late=6)]


def test_the_verb(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    probes, lab = tmp_path / "probes.jsonl", tmp_path / "lab.toml"
    probes.write_bytes(b"\n".join(msgspec.json.encode(each) for each in losses({("leaf1", "spine0"): 0.05}, 1)))
    lab.write_text(
        '[[hosts]]\nnames="n[0-15]"\n[[switches]]\nnames="leaf[0-3],spine[0-1]"\n'
        + "".join(f'[[cables]]\nfrom="n[{4 * leaf}-{4 * leaf + 3}]"\nto="leaf{leaf}"\n' for leaf in range(4))
        + '[[cables]]\nfrom="leaf[0-3]"\nto="spine[0-1]"\n'
    )
    assert main(["fabric", "blame", str(probes), "--topology", str(lab)]) == 1
    assert "link leaf1 > spine0: loses" in capsys.readouterr().out
    slow = late({("leaf1", "spine0"): 0.6}, 1, noise=0.01)
    probes.write_bytes(b"\n".join(msgspec.json.encode(each) for each in slow))
    assert main(["fabric", "blame", str(probes)]) == 1
    assert "of the packets that came were over 10 ms late" in capsys.readouterr().out
    probes.write_bytes(b"\n".join(msgspec.json.encode(each) for each in losses({}, 1)))
    assert main(["fabric", "blame", str(probes)]) == 0
    for text, expected in {
        "{": "not a path",
        '{"nodes": ["a"], "sent": 1, "bad": 0}': "two nodes",
        '{"nodes": ["n0", "x"], "sent": 1, "bad": 0}': "unknown node: x",
        '{"nodes": ["n0", "spine0"], "sent": 1, "bad": 0}': "no cable joins n0 and spine0",
    }.items():
        probes.write_text(text)
        assert main(["fabric", "blame", str(probes), "--topology", str(lab)]) == 2
        error = capsys.readouterr().err
        assert expected in error
        assert error.count("\n") == 1
