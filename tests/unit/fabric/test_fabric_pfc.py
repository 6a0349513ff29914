"""Deadlocks against brute force over random graphs; storms in simulated counters, and counters that lie."""

import itertools
import json
import random
from pathlib import Path

import pytest

from everstep.cli.main import main
from everstep.fabric.pfc.counters import Sample, increase, read_samples
from everstep.fabric.pfc.deadlock import buffer_graph, cycles_of, find_deadlocks
from everstep.fabric.pfc.routes import Route, read_routes
from everstep.fabric.pfc.storms import Storm, StormWatch, find_storms, roots, watch_storms
from everstep.fabric.topology.values import FabricError

GRAPHS = 1_000
"""10,000 in bench/fabric.py."""


def brute_force(edges: list[tuple[int, int]]) -> set[tuple[int, ...]]:
    """Every cycle, begun at its smallest node."""
    nodes = sorted({node for edge in edges for node in edge})
    there = set(edges)
    return {
        order
        for size in range(1, len(nodes) + 1)
        for order in itertools.permutations(nodes, size)
        if order[0] == min(order) and all(pair in there for pair in zip(order, (*order[1:], order[0]), strict=True))
    }


def rotated(cycle: list[int]) -> tuple[int, ...]:
    start = cycle.index(min(cycle))
    return (*cycle[start:], *cycle[:start])


def test_every_cycle_is_found_and_none_invented() -> None:
    draw = random.Random(1)
    with_cycles = 0
    for _ in range(GRAPHS):
        size = draw.randint(2, 5)
        pairs = list(itertools.product(range(size), repeat=2))
        edges = draw.sample(pairs, draw.randint(1, len(pairs) // 2))
        found = [rotated(cycle) for cycle in cycles_of(edges)]
        assert len(found) == len(set(found))
        assert set(found) == brute_force(edges)
        with_cycles += bool(found)
    assert GRAPHS // 4 < with_cycles < GRAPHS


def clos_routes() -> list[Route]:
    """Three leaves, two spines, a host on each leaf: all up-down routes."""
    return [
        Route((f"n{one}", f"leaf{one}", f"spine{spine}", f"leaf{other}", f"n{other}"))
        for one, other in itertools.permutations(range(3), 2)
        for spine in range(2)
    ]


TIERS = {**{f"n{n}": 0 for n in range(3)}, **{f"leaf{n}": 1 for n in range(3)}, "spine0": 2, "spine1": 2}


def test_up_down_routes_have_no_cycle() -> None:
    found = find_deadlocks(clos_routes(), TIERS)
    assert found.cycles == ()
    assert found.bounces == ()
    assert found.is_complete


def test_turns_after_a_failure_close_a_cycle() -> None:
    """Two flows that bounce at leaves after a failure: each waits for the other's way up and down."""
    bounced = [
        Route(("n0", "leaf0", "spine0", "leaf2", "spine1", "leaf1", "n1")),
        Route(("n1", "leaf1", "spine1", "leaf2", "spine0", "leaf0", "n0")),
        Route(("n1", "leaf1", "spine1", "leaf0", "spine0", "leaf2", "n2")),
        Route(("n2", "leaf2", "spine1", "leaf0", "spine0", "leaf2", "n2")),
    ]
    found = find_deadlocks([*clos_routes(), *bounced], TIERS)
    assert found.cycles
    assert [(route, node) for route, node in found.bounces][:1] == [(bounced[0], "leaf2")]
    for cycle in found.cycles:
        pairs = zip(cycle.buffers, (*cycle.buffers[1:], cycle.buffers[0]), strict=True)
        for (one, other), route in zip(pairs, cycle.routes, strict=True):
            hops = list(itertools.pairwise(route.nodes))
            assert (one[:2], other[:2]) in list(itertools.pairwise(hops)), "a route that makes the wait"


def test_a_priority_of_its_own_breaks_the_cycle() -> None:
    ring = [Route((f"s{n}", f"s{(n + 1) % 4}", f"s{(n + 2) % 4}", f"s{(n + 3) % 4}"), 3) for n in range(4)]
    assert len(find_deadlocks(ring, {}).cycles) == 1
    raised = [*ring[:3], Route(ring[3].nodes, 4)]
    assert len(find_deadlocks(raised[:2] + raised[3:], {}).cycles) == 0


def test_a_host_at_the_end_takes_in_what_comes() -> None:
    assert buffer_graph([Route(("a", "s", "b")), Route(("b", "s", "a"))]) == {}


def test_more_cycles_than_are_listed() -> None:
    names = [f"s{n}" for n in range(7)]
    routes = [Route((one, two, three, four)) for one, two, three, four in itertools.permutations(names, 4)]
    found = find_deadlocks(routes, {}, most=20)
    assert (len(found.cycles), found.is_complete) == (20, False)


@pytest.mark.parametrize("text", ["a", "a b @9", "a a", "a b b c", "@3"])
def test_bad_routes(text: str) -> None:
    with pytest.raises(FabricError, match="x:2: "):
        read_routes(f"n0 leaf0 n1 # fine\n{text}\n", "x")


# Storms


def samples(
    kinds: str, *, every: float = 0.1, start: int = 0, width: int = 1 << 64, at: float = 100.0, port: str = "E0"
) -> list[Sample]:
    """One letter an interval. s: storm, b: busy, i: incast (paused, but it sends), q: quiet and empty."""
    found, tx, pauses = [], start, start
    for number, kind in enumerate("b" + kinds):
        tx += {"s": 0, "b": 1000, "i": 300, "q": 0}[kind]
        pauses += {"s": 50, "b": 0, "i": 40, "q": 0}[kind]
        queue = {"s": 90_000, "b": 0, "i": 50_000, "q": 0}[kind]
        found.append(Sample(at=at + number * every, switch="leaf0", port=port, priority=3, tx_packets=tx % width,
                            rx_pause=pauses % width, queue_bytes=queue))  # fmt: skip
    return found


def test_storms_are_found_within_two_samples() -> None:
    draw = random.Random(2)
    for _ in range(300):
        before = "".join(draw.choice("biq") for _ in range(draw.randint(0, 20)))
        telemetry = samples(before + "s" * draw.randint(2, 30) + "b" * 5)
        (storm,) = find_storms(telemetry)
        first = telemetry[len(before)].at
        assert storm.began == pytest.approx(first)
        assert storm.found <= telemetry[len(before) + 2].at
        assert storm.over is not None


def test_incast_is_no_storm() -> None:
    draw = random.Random(3)
    for _ in range(300):
        kinds = "".join(draw.choice("biqs") for _ in range(40)).replace("ss", "sb")
        assert find_storms(samples(kinds)) == []


@pytest.mark.parametrize("width", [1 << 32, 1 << 64])
def test_counters_that_wrap_are_counted_on(width: int) -> None:
    (storm,) = find_storms(samples("bbbbsssss", start=width - 3000, width=width))
    assert storm.found == pytest.approx(100.6)


def test_counters_that_are_cleared_are_no_evidence() -> None:
    assert increase(500, 20) is None
    assert increase((1 << 32) - 5, 7) == 12
    assert increase((1 << 32) - 5, 1 << 31) is None
    assert increase(None, 3) is None
    telemetry = samples("bsbs")
    cleared = [*telemetry[:2], *samples("sb", at=100.2)]
    assert find_storms(cleared) == []


def test_a_clock_that_jumps_makes_no_storm_and_ends_none() -> None:
    one = samples("bbbs")
    later = samples("s", at=5000.0, start=90_000)
    assert find_storms([*one, *later]) == [], "one interval before a gap and one after are not two in a row"
    stormy = samples("ssss")
    back = samples("ssss", at=50.0, start=90_000)
    (storm,) = find_storms([*stormy, *back])
    assert storm.over is None


def test_what_is_not_known_is_no_storm() -> None:
    bare = [Sample(at=n / 10, switch="s", port="p", priority=3, rx_pause=n * 50) for n in range(20)]
    assert find_storms(bare) == []


@pytest.mark.parametrize(
    "counted",
    [
        {"tx_packets": 2**70},
        {"rx_pause": 2**70},
        {"pause_us": 10**9},
        {"tx_packets": None},
        {"queue_bytes": None},
        {"rx_pause": None},
    ],
    ids=str,
)
def test_an_interval_that_no_counter_explains_is_not_judged(counted: dict[str, int | None]) -> None:
    """The impossible is neither a storm nor health: 2**70 packets in a second, 1,000 s of pause in one."""
    (name, value), start = *counted.items(), {"tx_packets": 5, "rx_pause": None, "queue_bytes": 9000, "pause_us": None}
    if name in ("tx_packets", "queue_bytes"):
        start["rx_pause"] = 7
    made = [
        Sample(at=float(n), switch="s", port="p", priority=3, **{**start, name: value and value * n}) for n in range(5)
    ]
    watch = watch_storms(made)
    assert (watch.storms, watch.num_judged, watch.num_unknown) == ([], 0, 4)
    assert watch.never_judged == [("s", "p", 3)]


def test_a_page_says_what_was_not_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    known = [{"at": n, "switch": "s", "port": "p", "priority": 3, "tx_packets": 9 * n} for n in range(3)]
    unknown = [{"at": n, "switch": "s", "port": "q", "priority": 3, "rx_pause": 9 * n} for n in range(3)]
    file = tmp_path / "counters.jsonl"
    file.write_text("\n".join(json.dumps(line) for line in [*known, *unknown]))
    assert main(["fabric", "storms", str(file)]) == 0
    shown = capsys.readouterr().out
    assert "2 of 4 intervals" in shown
    assert "s:q priority 3" in shown
    assert main(["fabric", "storms", str(file), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["num_judged"], said["num_unknown"], said["never_judged"]) == (2, 2, [["s", "q", 3]])
    file.write_text("\n".join(json.dumps(line) for line in unknown))
    assert main(["fabric", "storms", str(file)]) == 2
    assert "nothing is known" in capsys.readouterr().err


def test_a_storm_is_over_after_a_quiet_time() -> None:
    watch = StormWatch()
    found = [watch.add(each) for each in samples("sssbsss" + "bbb" + "sss")]
    assert sum(each is not None for each in found) == 2
    assert [storm.over is None for storm in watch.storms] == [False, True]


def test_pauses_are_followed_to_their_root() -> None:
    def storm(switch: str, port: str) -> Storm:
        return Storm(switch=switch, port=port, priority=3, began=0.0, found=1.0)

    peers = {("spine0", "d1"): "leaf1", ("leaf1", "d0"): "n5", ("leaf0", "u0"): "spine0"}
    chain = [storm("leaf0", "u0"), storm("spine0", "d1"), storm("leaf1", "d0")]
    assert list(roots(chain, peers, frozenset({"n5"}))) == ["n5"]
    assert list(roots(chain[:2], peers, frozenset({"n5"}))) == ["leaf1"]


def test_sonic_names_are_read() -> None:
    line = {
        "at": 1, "switch": "s", "port": "Ethernet0", "priority": 3, "SAI_QUEUE_STAT_PACKETS": "12",
        "SAI_PORT_STAT_PFC_3_RX_PKTS": 7, "SAI_QUEUE_STAT_CURR_OCCUPANCY_BYTES": "x",
    }  # fmt: skip
    (sample,) = read_samples(json.dumps(line), "x")
    assert (sample.tx_packets, sample.rx_pause, sample.queue_bytes, sample.pause_us) == (12, 7, None, None)


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[]",
        "{}",
        '{"at": "1"}',
        '{"at": NaN, "priority": 3}',
        '{"at": 1, "priority": 9}',
        '{"at": 1, "priority": 3}',
    ],
)
def test_bad_lines(line: str) -> None:
    with pytest.raises(FabricError, match="x:1: "):
        read_samples(line, "x")


def test_the_verbs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ring = tmp_path / "routes.txt"
    ring.write_text("\n".join(f"s{n} s{(n + 1) % 4} s{(n + 2) % 4} s{(n + 3) % 4}" for n in range(4)))
    assert main(["fabric", "deadlock", str(ring)]) == 1
    assert "1 cycle among 4 buffers" in capsys.readouterr().out
    ring.write_text("a s b\n")
    assert main(["fabric", "deadlock", str(ring)]) == 0
    assert "no cycle" in capsys.readouterr().out
    import msgspec

    counters = tmp_path / "counters.jsonl"
    counters.write_bytes(b"\n".join(msgspec.json.encode(each) for each in samples("bsss")))
    lab = tmp_path / "lab.toml"
    lab.write_text('[[hosts]]\nnames="n5"\n[[switches]]\nnames="leaf0"\n[[cables]]\nfrom="n5"\nto="leaf0"\nport="E0"\n')
    assert main(["fabric", "storms", str(counters), "--topology", str(lab)]) == 1
    page = capsys.readouterr().out
    assert "leaf0:E0 priority 3: since 100.100, still there" in page
    assert "n5: its NIC pauses leaf0:E0 without end" in page
    counters.write_bytes(b"\n".join(msgspec.json.encode(each) for each in samples("bibi")))
    assert main(["fabric", "storms", str(counters), "--json"]) == 0
