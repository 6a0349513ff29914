"""Full links: what their queues lose is no fault of a cable; what a link loses that is not full still is."""

import itertools
import json
import random
import shutil
import subprocess
from pathlib import Path

import msgspec
import pytest
from test_fabric_locate import FLOWS, LINKS, NAMES, PATHS, names

from everstep.cli.main import main
from everstep.fabric.locate.blame import blame
from everstep.fabric.locate.loads import Load, Rate, loads_of
from everstep.fabric.locate.observations import Counted, Link, Seen, are_beside
from everstep.fabric.locate.wire import Wire
from everstep.fabric.probing.counting import Counting
from everstep.fabric.readers.find import read_topology
from everstep.fabric.topology.values import Topology
from everstep.linux.interfaces import read_interfaces
from everstep.linux.nics import Nic, read_nics
from everstep.linux.qdiscs import root_drops
from everstep.report.fabric.blame import blame_page

UPLINKS = [link for link in LINKS if not set(link) & NAMES]
SENT = 150  # 10 s at fifteen packets a second


def load(bps: float, capacity_bps: float | None = 20e6, *, errors: int = 0, discards: int | None = None) -> Load:
    return Load(rates=(Rate(bps=bps, discards=discards),), capacity_bps=capacity_bps, errors=errors)


def loads(full: list[Link]) -> dict[Link, Load]:
    return {link: load(19.6e6 if link in full else 9e6) for link in LINKS}


def congested(full: list[Link], seed: int, loss: dict[Link, float] | None = None, mean: float = 0.02) -> list[Seen]:
    """Queues lose in bursts: each path over a full link has luck of its own, and half of its packets are late."""
    draw, found = random.Random(seed), []
    for flow in FLOWS:
        nodes = PATHS[flow]
        crossed = [link for link in itertools.pairwise(nodes) if link in full]
        comes = 1.0
        for link in itertools.pairwise(nodes):
            comes *= 1.0 - (loss or {}).get(link, 0.0)
        for _ in crossed:
            comes *= 1.0 - mean * draw.expovariate(1.0)
        bad = sum(draw.random() >= comes for _ in range(SENT))
        late = sum(draw.random() < 0.5 for _ in range(SENT - bad)) if crossed else 0
        found.append(Seen(nodes=nodes, sent=SENT, bad=bad, late=late))
    return found


@pytest.mark.parametrize("full", [UPLINKS, UPLINKS[:3], LINKS], ids=["uplinks", "three", "all"])
def test_full_links_are_told_and_no_cable_is_blamed(full: list[Link]) -> None:
    for seed in range(6):
        verdict = blame(congested(full, seed), NAMES, loads(full))
        assert (verdict.faults, verdict.slow) == ((), ()), seed
        assert {each.link for each in verdict.full} == {f"{one} > {other}" for one, other in full}
        assert all((each.bps, each.capacity_bps) == (19.6e6, 20e6) for each in verdict.full)


@pytest.mark.parametrize(
    ("lossy", "rate", "num_full"),
    [
        (("n5", "leaf1"), 1.0, 16),
        (("leaf3", "n13"), 1.0, 16),
        (("leaf0", "spine0"), 1.0, 16),
        (("n5", "leaf1"), 0.1, 4),
    ],
)
def test_a_link_that_loses_and_is_not_full_is_found_beside_full_ones(lossy: Link, rate: float, num_full: int) -> None:
    """All of it, where no path avoids a full link; a little, where some do."""
    full = [link for link in UPLINKS if link != lossy][:num_full]
    for seed in range(4):
        verdict = blame(congested(full, seed, {lossy: rate}), NAMES, loads(full))
        assert f"{lossy[0]} > {lossy[1]}" in set().union(*names(verdict.faults)), seed
        assert len(verdict.faults) == 1


def test_a_full_link_that_also_loses_cannot_be_told_apart_unless_damage_is_counted() -> None:
    lossy = ("leaf0", "spine0")
    seen, known = congested([lossy], 1, {lossy: 0.1}), loads([lossy])
    verdict = blame(seen, NAMES, known)
    assert verdict.faults == ()
    assert next(each.rate for each in verdict.full if each.link == "leaf0 > spine0") > 0.07
    for more in ({"errors": 12}, {"discards": 0}):
        verdict = blame(seen, NAMES, known | {lossy: load(19.6e6, **more)})
        assert "leaf0 > spine0" in set().union(*names(verdict.faults)), more


def test_losses_while_a_link_is_not_full_are_its_own() -> None:
    """Full every fourth second: a queue loses in those seconds only, a cable in all of them."""
    lossy, windows = ("leaf0", "spine0"), range(0, 24, 2)
    known = {link: load(9e6) for link in LINKS}
    known |= {link: Load(rates=tuple(Rate(bps=19.8e6 if at % 8 == 0 else 1e6, at=at, seconds=1.0) for at in windows),
                         capacity_bps=20e6) for link in UPLINKS}  # fmt: skip
    for loss in ({}, {lossy: 0.05}):
        seen = [
            msgspec.structs.replace(each, at=float(at), seconds=1.0)
            for at in windows
            for each in congested(UPLINKS if at % 8 == 0 else [], at, loss)
        ]
        verdict = blame(seen, NAMES, known)
        assert names(verdict.faults) == [{"leaf0 > spine0"} for _ in loss]
        assert len(verdict.full) == len(UPLINKS)


def test_what_is_sent_to_a_host_that_does_not_run_is_no_evidence() -> None:
    """Its prober loses packets in its own sockets, and answers nothing."""

    def windows(at: float) -> list[Seen]:
        return [Seen(nodes=nodes, sent=15, bad=9 * ("n5" in (nodes[0], nodes[-1])), at=at, seconds=1.0)
                for nodes in map(PATHS.get, FLOWS) if nodes]  # fmt: skip

    around = Seen(nodes=("n1", "leaf0", "n5", "leaf0", "n1"), sent=15, bad=15, at=40.0, seconds=1.0)
    seen = [around, *(each for at in (40.0, 41.0, 42.0) for each in windows(at))]
    assert "n5" in set().union(*names(blame(seen, NAMES).faults))
    stall = Seen(nodes=("n5",), sent=0, bad=0, at=42.0, seconds=3.0)
    assert blame([*seen, stall], NAMES).faults == ()
    later = windows(50.0)
    assert "n5" in set().union(*names(blame([*later, stall], NAMES).faults)), "it is evidence when the host runs"


def test_a_load_that_is_not_known_at_that_time_is_not_known() -> None:
    slow = ("leaf2", "spine1")
    seen = [msgspec.structs.replace(each, at=100.0, seconds=10.0) for each in congested([slow], 3, mean=0.05)]
    for rate in (Rate(bps=1e6, at=50.0, seconds=10.0), Rate(bps=1e6, at=100.0, seconds=10.0, gap_s=6.0)):
        known = loads([]) | {slow: Load(rates=(rate,), capacity_bps=20e6)}
        (fault,) = blame(seen, NAMES, known).faults
        assert fault.may_be_full


def test_a_queue_that_dropped_packets_explains_losses_of_a_link_that_is_not_full_for_a_second() -> None:
    busy = ("n3", "leaf0")
    seen = congested([busy], 4)
    assert "n3 > leaf0" in set().union(*names(blame(seen, NAMES, loads([])).faults))
    verdict = blame(seen, NAMES, loads([]) | {busy: load(9e6, discards=40)})
    assert verdict.faults == ()
    assert [each.link for each in verdict.full] == ["n3 > leaf0"]


def test_no_drops_in_the_kernel_s_queue_prove_nothing_of_the_queues_below_it(tmp_path: Path) -> None:
    zero, some = window(tx_bps=19e6, grown={"qdisc_drops": 0}), window(tx_bps=1e6, grown={"qdisc_drops": 4})
    port = window(tx_bps=19e6, grown={"qdisc_drops": 0, "port_xmit_discards": 0})
    found = [loads_of([each], topology(tmp_path))["n0", "leaf0"].rates[0].discards for each in (zero, some, port)]
    assert found == [None, 4, 0]


def test_damage_on_a_link_that_loses_nothing_is_no_fault_of_probes() -> None:
    verdict = blame(congested([], 1), NAMES, {LINKS[0]: load(1e6, errors=5)})
    assert verdict.faults == ()


@pytest.mark.parametrize("capacity", [None, 10e9], ids=["capacity unknown", "far from full"])
def test_a_load_that_is_not_known_excuses_nothing(capacity: float | None) -> None:
    """A slow link is late and loses as a full one does: only its capacity tells them apart."""
    slow = ("leaf2", "spine1")
    known = loads([]) | {slow: load(1e6, capacity)}
    verdict = blame(congested([slow], 3, mean=0.05), NAMES, known)
    assert verdict.full == ()
    (fault,) = verdict.faults
    assert "leaf2 > spine1" in names([fault])[0]
    assert fault.may_be_full == (capacity is None)
    assert [each.may_be_full for each in verdict.slow] == [capacity is None]


@pytest.mark.parametrize(("share", "is_fault"), [(0.5, False), (0.1, True)])
def test_a_link_makes_no_more_packets_late_than_its_traffic_can(share: float, is_fault: bool) -> None:
    """A queue is there only while the link sends."""
    busy = ("leaf1", "n7")
    seen = [
        Seen(nodes=each.nodes, sent=SENT, bad=0, late=30 if busy in itertools.pairwise(each.nodes) else 0)
        for each in congested([], 1)
    ]
    verdict = blame(seen, NAMES, loads([]) | {busy: load(share * 20e6)})
    assert bool(verdict.slow) is is_fault


def test_a_loss_without_delay_is_no_full_link_even_where_loads_are_not_known() -> None:
    seen = congested([], 2, {("n5", "leaf1"): 0.05})
    (fault,) = blame(seen, NAMES).faults
    assert not fault.may_be_full


TOPOLOGY = """
hosts = [{names = "n[0-1]", nics = 1}]
switches = [{names = "leaf0"}]
cables = [{from = "n[0-1]", nic = "nic0", to = "leaf0", port = "", speed = "20M"}]
"""


def window(node: str = "n0", **more: object) -> Counted:
    return msgspec.convert({"node": node, "nic": "nic0", "seconds": 10.0, "gap_s": 1.0, **more}, Counted)


def rates(*bps: float) -> tuple[Rate, ...]:
    return tuple(Rate(bps=each, gap_s=1.0, seconds=10.0) for each in bps)


def topology(tmp_path: Path, text: str = TOPOLOGY) -> Topology:
    (tmp_path / "lab.toml").write_text(text)
    return read_topology(tmp_path / "lab.toml")


def test_ports_become_loads_of_both_directions(tmp_path: Path) -> None:
    counted = [
        window(tx_bps=19.5e6, rx_bps=1e6, grown={"rx_crc_errors": 2, "port_xmit_discards": 0}),
        window(tx_bps=2e6, rx_bps=3e6, grown={"rx_crc_errors": 1}, unknown=("port_xmit_discards",)),
        window("n7", tx_bps=1e6),
    ]
    found = loads_of(counted, topology(tmp_path))
    assert found == {
        ("n0", "leaf0"): Load(
            rates=(Rate(bps=19.5e6, gap_s=1.0, seconds=10.0, discards=0), *rates(2e6)), capacity_bps=20e6
        ),
        ("leaf0", "n0"): Load(rates=rates(1e6, 3e6), capacity_bps=20e6, errors=3),
    }
    assert [found[link].is_full for link in found] == [True, False]


def test_what_is_not_known_is_neither_full_nor_free(tmp_path: Path) -> None:
    no_speed = topology(tmp_path, TOPOLOGY.replace(', speed = "20M"', ""))
    assert loads_of([window(tx_bps=19e6)], no_speed)["n0", "leaf0"].is_full is None
    known = topology(tmp_path)
    assert loads_of([window()], known)["n0", "leaf0"].is_full is None
    assert loads_of([window(tx_bps=1e6, gap_s=6.0)], known)["n0", "leaf0"].is_full is None, "nobody looked for 6 s"
    assert loads_of([window(tx_bps=19e6, gap_s=6.0)], known)["n0", "leaf0"].is_full is True


def test_packets_that_busy_links_make_late_for_a_while_make_no_link_slow() -> None:
    """Of an hour of the test bed: links of 75 to 90 % load, full for a part of a second, so that whole bursts of probes
    came late. A link of 4 % on the way of most of them was called slow."""
    busy = {link: load(0.85 * 20e6) for link in UPLINKS}
    known = loads([]) | busy
    for seed in range(6):
        draw = random.Random(seed)
        seen = [
            msgspec.structs.replace(each, late=sum(each.sent // 30 for _ in range(30) if draw.random() < 0.8))
            if any(link in busy for link in each.links) and draw.random() < 0.15
            else each
            for each in congested([], seed)
        ]
        assert blame(seen, NAMES, known).slow == (), seed
    slow = ("n5", "leaf1")
    late = [
        msgspec.structs.replace(each, late=each.sent // 2) if slow in each.links else each for each in congested([], 3)
    ]
    (fault,) = blame(late, NAMES, known).slow
    assert "n5 > leaf1" in names([fault])[0]


def test_a_busy_minute_excuses_what_is_late_in_it_and_not_in_the_hour_after() -> None:
    """All links were at 70 % in the first minute. A link that made a third late from then on was not named."""
    slow, minutes = ("leaf0", "spine0"), 60
    rates = tuple(Rate(bps=14e6 if at == 0 else 1e6, at=60.0 * at, seconds=60.0) for at in range(minutes))
    known = {link: Load(rates=rates, capacity_bps=20e6) for link in LINKS}
    for at in (0, 30):
        seen = [
            msgspec.structs.replace(
                each,
                at=60.0 * minute - 1.0,
                seconds=58.0,
                late=each.sent // 3 if slow in each.links and (minute == 0 or at) else 0,
            )
            for minute in range(at + 1)
            for each in congested([], minute)
        ]
        verdict = blame(seen, NAMES, known)
        assert names(verdict.slow) == ([{"leaf0 > spine0"}] if at else []), at


def test_a_window_finds_its_own_readings_among_those_of_a_day() -> None:
    """Also of hosts whose windows are of other lengths, come in any order, or have no time."""
    draw = random.Random(5)
    rates = tuple(
        Rate(bps=draw.random(), at=draw.choice([None, 1e5 * draw.random()]), seconds=draw.choice([1.0, 10.0, 300.0]))
        for _ in range(3000)
    )
    known = Load(rates=rates, capacity_bps=1.0)
    for _ in range(200):
        seen = Seen(nodes=("a", "b"), sent=9, bad=0, at=1e5 * draw.random(), seconds=draw.choice([1.0, 60.0]))
        assert known.share_beside(seen) == max(rate.bps for rate in rates if are_beside(seen, rate, 60.0))


def test_probes_of_before_and_after_all_counters_are_not_compared_with_them() -> None:
    """Whether a link was full then is not known: one file was begun earlier, or its last lines are not printed yet."""
    full = ("leaf0", "spine0")
    rates = tuple(Rate(bps=9e6, at=100.0 + second, seconds=1.0) for second in range(10))
    known = {link: Load(rates=rates, capacity_bps=20e6) for link in LINKS}
    inside = [msgspec.structs.replace(each, at=105.0, seconds=1.0) for each in congested([], 1)]
    # What is lost of a window from 100.1 on was sent 1.25 s before: three of 718 verdicts blamed a cable for it.
    for at in (98.0, 101.1, 112.0):
        outside = [msgspec.structs.replace(each, at=at, seconds=1.0) for each in congested([full], 1, mean=0.05)]
        assert blame([*inside, *outside], NAMES, known).faults == ()
        assert blame(outside, NAMES, known).faults != (), "all clocks of these hosts differ, or the file is another's"


def test_losses_of_long_after_the_last_counters_are_not_passed_over() -> None:
    """`counters` had ended after ten seconds; the link died half an hour later, and the network was called healthy."""
    dead = ("leaf0", "spine0")
    rates = tuple(Rate(bps=9e6, at=100.0 + second, seconds=1.0) for second in range(10))
    known = {link: Load(rates=rates, capacity_bps=20e6) for link in LINKS}
    inside = [msgspec.structs.replace(each, at=105.0, seconds=1.0) for each in congested([], 1)]
    for at in (1900.0, -1700.0):
        later = [msgspec.structs.replace(each, at=at, seconds=1.0) for each in congested([], 2, {dead: 1.0})]
        assert names(blame([*inside, *later], NAMES, known).faults) == [{"leaf0 > spine0"}]


@pytest.mark.parametrize("bps", [1e12, 1e308, -5.0, float("nan")])
def test_a_port_that_says_what_no_cable_carries_excuses_nothing(bps: float, tmp_path: Path) -> None:
    """It was full at 5,000,000 %, and the link that loses was none's fault."""
    for bad in (window(tx_bps=bps), msgspec.structs.replace(window(tx_bps=19.9e6), seconds=-1.0)):
        (load,) = [found for link, found in loads_of([bad], topology(tmp_path)).items() if link == ("n0", "leaf0")] or [
            None
        ]
        assert load is None or (load.bps is None and load.is_full is None)


def test_a_host_that_says_that_it_sent_more_than_can_be_numbered_outvotes_nobody() -> None:
    lossy = ("leaf0", "spine0")
    seen = congested([], 3, {lossy: 0.3})
    lies = [msgspec.structs.replace(each, sent=1 << 60, bad=0) for each in seen if each.nodes[-1] == "n5"]
    verdict = blame([*seen, *lies], NAMES)
    assert names(verdict.faults) == [{"leaf0 > spine0"}]
    assert verdict.impossible == {"n5": len(lies)}


def test_a_cable_of_which_ports_name_one_way_and_probes_the_other_is_one_fault() -> None:
    one, other = ("leaf0", "spine0"), ("spine0", "leaf0")
    known = loads([]) | {one: msgspec.structs.replace(load(1e6), wire=Wire(sent=9000, rate=1.0, error=0.01))}
    lossy = congested([], 2, {one: 0.98, other: 0.98})
    (fault,) = blame(lossy, NAMES, known).faults
    assert names([fault]) == [{"leaf0 - spine0"}]


def test_a_cable_whose_ways_differ_shows_no_two_rates_without_a_reason() -> None:
    """Of one cable it said: loses 49.2 %; 450 of 9,000 packets did not come."""
    one, other = ("leaf0", "spine0"), ("spine0", "leaf0")
    known = loads([]) | {one: msgspec.structs.replace(load(1e6), wire=Wire(sent=9000, rate=0.05, error=0.01))}
    for rate, is_said in ((0.5, True), (0.05, False)):
        verdict = blame(congested([], 2, {one: 0.05, other: rate}), NAMES, known)
        page = " ".join(blame_page("probes", verdict, 100).split())
        assert "450 of 9,000 packets" in page
        assert ("probes see more losses the other way" in page) is is_said


def test_counters_that_go_back_or_vanish_or_come_are_unknown() -> None:
    def nic(**counters: int) -> dict[str, Nic]:
        return {"eth0": Nic(None, counters)}

    counting = Counting("n0", 0.0, nic(tx_bytes=100, rx_bytes=1 << 32, rx_errors=5, old=1))
    counting.add(1.0, nic(tx_bytes=350, rx_bytes=7, rx_errors=5, new=9))
    counting.add(2.0, nic(tx_bytes=400, rx_bytes=9, rx_errors=8, new=9))
    counting.add(2.0, nic(tx_bytes=1, rx_bytes=1, rx_errors=1, new=1))  # a clock that stands still: no reading
    (first,) = counting.close(5.0)
    assert (first.tx_bps, first.rx_bps, first.gap_s, first.capacity_bps) == (2000, None, 1.0, None)
    assert (first.at, first.seconds) == (7.0, 2.0)
    assert first.grown == {"tx_bytes": 300, "rx_errors": 3}
    assert first.unknown == ("new", "old", "rx_bytes")
    counting.add(3.0, {})
    (gone,) = counting.close(7.0)
    assert (gone.tx_bps, gone.grown) == (None, {})
    assert "tx_bytes" in gone.unknown
    assert counting.close(7.0) == [], "a port that is gone is not told for ever"


def test_nics_are_read_as_the_kernel_lists_them(tmp_path: Path) -> None:
    files = {
        "class/net/eth0/speed": "10000\n",
        "class/net/eth0/statistics/tx_bytes": "7\n",
        "class/net/eth1/speed": "-1\n",
        "class/net/eth1/statistics/tx_bytes": "8\n",
        "class/net/eth1/statistics/rx_bytes": "garbage",
        "class/net/lo/statistics/tx_bytes": "9\n",
        "class/infiniband/mlx5_0/ports/1/rate": "400 Gb/sec (4X NDR)\n",
        "class/infiniband/mlx5_0/ports/1/counters/port_xmit_data": "10\n",
        "class/infiniband/mlx5_0/ports/1/hw_counters/np_cnp_sent": "3\n",
    }
    for name, text in files.items():
        (tmp_path / "sys" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "sys" / name).write_text(text)
    assert read_nics(tmp_path) == {
        "eth0": Nic(10e9, {"tx_bytes": 7}),
        "eth1": Nic(None, {"tx_bytes": 8}),
        "mlx5_0/1": Nic(400e9, {"port_xmit_data": 10, "np_cnp_sent": 3, "tx_bytes": 40}),
    }
    assert read_nics(tmp_path / "none") == {}


@pytest.mark.skipif(shutil.which("tc") is None, reason="tc is not installed")
def test_drops_of_queues_are_read_from_the_kernel() -> None:
    listed = subprocess.run(["tc", "-s", "-j", "qdisc", "show"], capture_output=True, text=True, check=True).stdout
    wanted = {each["dev"]: each["drops"] for each in json.loads(listed) if each.get("root") and "drops" in each}
    found = root_drops()
    assert found.keys() == wanted.keys()
    assert all(found[name] >= drops for name, drops in wanted.items())


def test_counters_of_interfaces_are_those_of_sys() -> None:
    """One that has just sent may have counted on meanwhile: those that stand still have to be equal."""
    before, found, after = (by_files(), read_interfaces().counters, by_files())
    assert found.keys() == before.keys() != set()
    for name, counters in found.items():
        assert counters.keys() == before[name].keys()
        assert all(before[name][key] <= value <= after[name][key] for key, value in counters.items()), name
    assert any(value for value in found["lo"].values())


def by_files() -> dict[str, dict[str, int]]:
    return {
        path.name: {each.name: int(each.read_text()) for each in (path / "statistics").iterdir()}
        for path in Path("/sys/class/net").iterdir()
    }


def test_a_full_link_is_printed_and_is_no_fault(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    probes, counters, lab = (tmp_path / name for name in ("probes.jsonl", "counters.jsonl", "lab.toml"))
    probes.write_text('{"nodes": ["n0", "leaf0", "n1"], "sent": 600, "bad": 20, "late": 300}\n'
                      '{"nodes": ["n1", "leaf0", "n0"], "sent": 600, "bad": 0}\n')  # fmt: skip
    lab.write_text(TOPOLOGY)
    counters.write_text(msgspec.json.encode(window(tx_bps=19.6e6)).decode() + "\n")
    assert main(["fabric", "blame", str(probes), "--topology", str(lab)]) == 1
    assert "or full: its packets are late, and how full it is is not known" in capsys.readouterr().out
    assert main(["fabric", "blame", str(probes), "--topology", str(lab), "--counters", str(counters)]) == 0
    page = capsys.readouterr().out
    assert "no fault found" in page
    assert "n0 > leaf0: 98.0% of 0.02 Gbit/s in its fullest second; loses 3.3%, as full links do" in page
    assert main(["fabric", "blame", str(probes), "--counters", str(counters)]) == 2
    assert "--counters needs --topology" in capsys.readouterr().err
    counters.write_text('{"node": 7}\n')
    assert main(["fabric", "blame", str(probes), "--topology", str(lab), "--counters", str(counters)]) == 2


def test_this_machine_s_ports_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fabric", "counters", "--node", "n0", "--every", "0.2", "--windows", "2"]) == 0
    lines = [msgspec.json.decode(line, type=Counted) for line in capsys.readouterr().out.splitlines()]
    assert {each.node for each in lines} <= {"n0"}
    assert {each.nic for each in lines} == set(read_nics())
    assert all(0.1 < each.seconds < 60 for each in lines), "give or take half of the time between two readings"
    assert all(each.marks is not None for each in lines), "the kernel told when it counted"
    assert main(["fabric", "counters", "--every", "0"]) == 2
