"""What two ports counted tells a cable that loses packets from a queue that does, also while the link is full."""

import json
import random
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from test_fabric_full import UPLINKS, congested
from test_fabric_locate import LINKS, NAMES

from everstep.cli.main import main
from everstep.fabric.locate.blame import blame
from everstep.fabric.locate.loads import Load, Rate, loads_of
from everstep.fabric.locate.observations import Counted, Mark
from everstep.fabric.locate.wire import Wire, wire_of
from everstep.fabric.probing.counting import Counting
from everstep.fabric.topology.values import Cable, Host, Port, Topology
from everstep.linux.interfaces import Taken
from everstep.linux.nics import Nic

Speed = Callable[[float], float]
FULL = 1700.0  # packets a second of 20 Mbit/s


def steady(_: float) -> float:
    return FULL


def waves(at: float) -> float:
    """Idle for seconds, full for seconds."""
    return FULL if int(at / 7) % 2 else 90.0


def bursts(at: float) -> float:
    return 4 * FULL if at % 1.0 < 0.2 else 10.0


class Wired:
    """Packets over a cable, counted at both ends a millisecond apart."""

    def __init__(self, rate: Speed, loss: float, seconds: float, seed: int) -> None:
        draw = random.Random(seed)
        self.sent, self.came = [0], [0]
        part = 0.0
        for millisecond in range(int(1000 * (seconds + 4))):
            part += rate(millisecond / 1000) / 1000
            packets, part = int(part), part - int(part)
            self.sent.append(self.sent[-1] + packets)
            self.came.append(self.came[-1] + sum(draw.random() >= loss for _ in range(packets)))

    def windows(
        self, counter: str, seed: int, *, offset_s: float = 0.0, seconds: int = 60, size: int = 1200
    ) -> list[Counted]:
        """Read about once a second, up to 60 ms late; the clock of this node differs by so much."""
        draw = random.Random(seed)
        values = self.sent if counter == "tx" else self.came
        reads = [1.0 + second + 0.06 * draw.random() ** 3 for second in range(seconds + 1)]
        at = [values[int(1000 * read)] for read in reads]
        return [
            Counted(node="a", nic="p", seconds=round(end - begin, 3), gap_s=1.0,
                    at=1e9 + end + offset_s + 0.05 * draw.random(),
                    grown={f"{counter}_packets": after - before, f"{counter}_bytes": size * (after - before)})
            for begin, end, before, after in zip(reads, reads[1:], at, at[1:], strict=False)
        ]  # fmt: skip


def both(rate: Speed, loss: float, seed: int, *, seconds: int = 60, offset_s: float = 0.0) -> Wire | None:
    cable = Wired(rate, loss, seconds, seed)
    came = cable.windows("rx", seed + 1000, seconds=seconds, offset_s=offset_s)
    return wire_of(cable.windows("tx", seed + 2000, seconds=seconds), came)


@pytest.mark.slow
@pytest.mark.parametrize("rate", [steady, waves, bursts, lambda _: 90.0], ids=["full", "waves", "bursts", "probes"])
@pytest.mark.parametrize("offset_s", [0.0, 0.7, -0.7], ids=["", "ahead", "behind"])
def test_a_good_cable_is_never_called_lossy(rate: Speed, offset_s: float) -> None:
    found = [both(rate, 0.0, seed, offset_s=offset_s) for seed in range(12)]
    assert not any(wire is not None and wire.is_lossy for wire in found)


@pytest.mark.parametrize("offset_s", [0.0, 0.7], ids=["", "ahead"])
def test_one_percent_of_a_full_link_is_seen_in_a_minute_and_five_in_a_quarter(offset_s: float) -> None:
    for seed in range(12):
        one, good = both(steady, 0.01, seed, offset_s=offset_s), both(steady, 0.0, seed, offset_s=offset_s)
        assert one is not None
        assert one.is_lossy, (seed, one)
        assert one.rate == pytest.approx(0.01, abs=0.003)
        assert good is not None
        assert good.most < 0.01  # and a good one is known to be
        five = both(steady, 0.05, seed, seconds=20, offset_s=offset_s)
        assert five is not None
        assert five.is_lossy, (seed, five)


def _more(window: Counted, packets: int, size: int) -> Counted:
    more = {"packets": packets, "bytes": packets * size}
    grown = {name: value + more[name.partition("_")[2]] for name, value in window.grown.items()}
    return msgspec.structs.replace(window, grown=grown)


def test_what_ports_do_not_count_alike_is_not_known() -> None:
    cable = Wired(steady, 0.0, 60, 1)
    out, into = cable.windows("tx", 2), cable.windows("rx", 3)
    pauses = [_more(each, 400, 64) for each in out]
    merged = [_more(each, -each.grown["rx_packets"] * 7 // 8, 0) for each in into]
    more = [_more(each, 90, 1200) for each in into]
    assert wire_of(out, merged) is None  # the receiver counts eight as one
    assert wire_of(pauses, into) is None  # the sender counts frames that end at the other port
    assert wire_of(out, more) is None  # more come than were sent
    assert wire_of(out, []) is None
    assert wire_of(out[:10], into[:10]) is None
    assert wire_of([msgspec.structs.replace(each, at=None) for each in out], into) is None


def test_a_gap_a_counter_that_went_back_and_a_clock_that_was_set_are_no_loss() -> None:
    cable = Wired(steady, 0.0, 60, 1)
    out, into = cable.windows("tx", 2), cable.windows("rx", 3)
    assert (whole := wire_of(out, into)) is not None
    back = msgspec.structs.replace(into[20], grown={"rx_bytes": 5}, unknown=("rx_packets",))
    negative = msgspec.structs.replace(into[20], grown={"rx_bytes": 5, "rx_packets": -(10**15)})
    stepped = [msgspec.structs.replace(each, at=(each.at or 0) + 3600) for each in into[30:]]
    twice = [*into[:30], into[29], *into[30:]]
    for damaged in ([*into[:20], *into[21:]], [*into[:20], back, *into[21:]], [*into[:20], negative, *into[21:]],
                    [*into[:30], *stepped], twice, into[::-1]):  # fmt: skip
        wire = wire_of(out, damaged)
        assert wire is not None
        assert not wire.is_lossy
        assert wire.sent <= whole.sent


def test_packets_for_which_the_receiver_had_no_room_are_not_the_cables() -> None:
    cable = Wired(steady, 0.03, 60, 1)
    out, into = cable.windows("tx", 2), cable.windows("rx", 3)
    missed = [
        msgspec.structs.replace(each, grown=each.grown | {"rx_missed_errors": round(each.grown["rx_packets"] * 0.031)})
        for each in into
    ]
    wire = wire_of(out, missed)
    assert wire is not None
    assert not wire.is_lossy
    unknown = [msgspec.structs.replace(each, unknown=("rx_missed_errors",)) for each in into]
    assert wire_of(out, unknown) is None


GOOD = Wire(sent=100_000, rate=0.0002, error=0.003)
BAD = Wire(sent=100_000, rate=0.01, error=0.003)


def _load(wire: Wire | None, bps: float = 19.6e6) -> Load:
    return Load(rates=(Rate(bps=bps),), capacity_bps=20e6, errors=0, wire=wire)


def test_one_percent_on_a_full_cable_among_full_cables_is_named_and_every_other_is_judged() -> None:
    """Before, it was one of many that are not judged."""
    lossy = ("leaf0", "spine0")
    for seed in range(4):
        loads = {link: _load(BAD if link == lossy else GOOD) for link in LINKS}
        verdict = blame(congested(UPLINKS, seed, {lossy: 0.01}), NAMES, loads, LINKS)
        assert [(fault.suspects[0].name, fault.counted) for fault in verdict.faults] == [("leaf0 > spine0", 100_000)]
        assert (verdict.slow, verdict.unjudged) == ((), ())
        clean = blame(congested(UPLINKS, seed), NAMES, {link: _load(GOOD) for link in LINKS}, LINKS)
        assert (clean.faults, clean.slow, clean.unjudged) == ((), (), ())
        assert {each.cable_most for each in clean.full} == {GOOD.most}


def test_both_ways_are_one_cable_and_probes_name_what_lies_beside_it() -> None:
    one, other = ("leaf0", "spine0"), ("n9", "leaf2")
    ways = (one, one[::-1])
    loads = {link: _load(BAD if link in ways else None, 9e6) for link in LINKS}
    seen = congested([], 3, {one: 0.01, one[::-1]: 0.01, other: 0.1})
    verdict = blame(seen, NAMES, loads, LINKS)
    named = [{suspect.name for suspect in fault.suspects} for fault in verdict.faults]
    assert named[0] == {"leaf0 - spine0"}
    assert len(named) == 2
    assert "n9 > leaf2" in named[1]


def test_counters_that_probes_contradict_blame_nothing() -> None:
    """A cable that is elsewhere than the topology says: both ports count, but not the same packets."""
    absurd = Wire(sent=100_000, rate=0.5, error=0.01)
    loads = {link: _load(absurd if link == UPLINKS[0] else GOOD) for link in LINKS}
    verdict = blame(congested([], 3), NAMES, loads, LINKS)
    assert (verdict.faults, verdict.slow) == ((), ())


def test_the_page_says_by_whose_counters(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hosts = tuple(Host(name=name) for name in ("a", "b"))
    ends = [Port(node=name, name="p", bps=20e6) for name in ("a", "b")]
    lab = Topology(source="lab", hosts=hosts, cables=(Cable(one=ends[0], other=ends[1]),))
    cable = Wired(steady, 0.02, 60, 1)
    out, into = cable.windows("tx", 2), cable.windows("rx", 3)
    out = [msgspec.structs.replace(each, tx_bps=19.6e6) for each in out]
    into = [msgspec.structs.replace(each, node="b") for each in into]
    assert loads_of([*out, *into], lab)["a", "b"].wire is not None
    paths = {"lab.json": [lab], "counted": [*out, *into]}
    for name, rows in paths.items():
        (tmp_path / name).write_bytes(b"\n".join(map(msgspec.json.encode, rows)) + b"\n")
    probe = {"nodes": ["a", "b"], "sent": 900, "bad": 40}
    (tmp_path / "probes").write_text(json.dumps(probe) + "\n")
    argv = ["fabric", "blame", str(tmp_path / "probes"), "--topology", str(tmp_path / "lab.json"),
            "--counters", str(tmp_path / "counted")]  # fmt: skip
    assert main(argv) == 1
    page = " ".join(capsys.readouterr().out.split())
    assert "fault link a > b: loses 2.0%" in page
    assert "packets that left one of its ports did not come to the other; no queue loses there" in page
    assert "its cable loses 2.0%, by its ports' counters" in page


def test_every_chain_is_looked_at_in_any_order() -> None:
    cable = Wired(steady, 0.0, 60, 1)
    out, into = cable.windows("tx", 2), cable.windows("rx", 3)
    random.Random(1).shuffle(into)
    assert wire_of(out, into) is not None
    for number in range(11):
        assert wire_of(out[:number], into) is None


def exact(cable: Wired, counter: str, seed: int, *, seconds: int, begin: int = 0, late_s: float = 0.3) -> list[Counted]:
    """Windows of a second, read twice, whenever a busy machine comes to it; but when is known to a millisecond."""
    draw = random.Random(seed)
    reads = [1.0 + begin + 0.5 * number + late_s * draw.random() ** 3 for number in range(2 * seconds + 1)]
    at = {read: (cable.sent[int(1000 * read)], cable.came[int(1000 * read)]) for read in reads}
    found = []
    for one, middle, end in zip(reads[:-2:2], reads[1::2], reads[2::2], strict=True):
        marks = [Mark(round(each - one, 4), *(at[each][n] - at[one][n] for n in (0, 1))) for each in (middle, end)]
        grown = {"tx_packets": marks[1].sent, "rx_packets": marks[1].came}
        grown |= {"tx_bytes": 1200 * marks[1].sent, "rx_bytes": 1200 * marks[1].came}
        found.append(Counted(node="a", nic="p", seconds=round(end - one, 4), gap_s=0.6, at=round(1e9 + end, 3),
                             grown=grown, marks=tuple(marks)))  # fmt: skip
    return found


def uneven(at: float) -> float:
    return FULL * (0.7 + 0.3 * (int(at / 0.3) % 2))


@pytest.mark.parametrize(("rate", "late_s"), [(steady, 0.3), (uneven, 0.03)])
def test_one_percent_is_seen_in_ten_seconds_where_ports_say_when_they_were_read(rate: Speed, late_s: float) -> None:
    """Where it is only known when the line was printed, a good cable and a bad one look alike for a minute."""
    for seed in range(12):
        bad, good = Wired(rate, 0.01, 10, seed), Wired(rate, 0.0, 10, seed)
        wire = wire_of(
            *(exact(bad, counter, seed + n, seconds=9, late_s=late_s) for n, counter in enumerate(("tx", "rx")))
        )
        assert wire is not None
        assert wire.is_lossy, (seed, wire)
        assert wire.rate == pytest.approx(0.01, abs=0.004)
        wire = wire_of(
            *(exact(good, counter, seed + n, seconds=9, late_s=late_s) for n, counter in enumerate(("tx", "rx")))
        )
        assert wire is not None
        assert not wire.is_lossy, (seed, wire)
        assert wire.most < 0.01, (seed, wire)


@pytest.mark.parametrize("rate", [steady, waves, bursts, lambda _: 90.0], ids=["full", "waves", "bursts", "probes"])
@pytest.mark.parametrize("seconds", [7, 10, 60])
def test_a_good_cable_whose_readings_are_exact_is_never_called_lossy(rate: Speed, seconds: int) -> None:
    for seed in range(12):
        cable = Wired(rate, 0.0, seconds + 2, seed)
        wire = wire_of(exact(cable, "tx", seed + 1, seconds=seconds), exact(cable, "rx", seed + 2, seconds=seconds))
        assert wire is None or not wire.is_lossy, (seed, wire)


def test_readings_that_cannot_be_are_not_believed() -> None:
    cable = Wired(steady, 0.0, 20, 1)
    out, into = exact(cable, "tx", 2, seconds=20), exact(cable, "rx", 3, seconds=20)
    assert wire_of(out, into) is not None
    sane = into[3].marks or ()
    for marks in ((sane[1], sane[0]), (Mark(-1.0, 5, 5),), (Mark(9e9, 5, 5),), (Mark(0.3, -5, -5),),
                  (Mark(0.3, 10**18, 10**18),), (Mark(float("nan"), 5, 5),)):  # fmt: skip
        lying = [msgspec.structs.replace(each, marks=marks) for each in into]
        assert wire_of(out, lying) is None, marks
    inexact = [msgspec.structs.replace(each, marks=()) for each in into]
    assert wire_of(out, inexact) is None, "of no reading it is known when it was"


def test_a_reading_that_was_interrupted_is_no_mark() -> None:
    def nics(at: float, took: float, sent: int) -> dict[str, Nic]:
        counters = {"tx_packets": sent, "rx_packets": 2 * sent, "tx_bytes": sent, "rx_bytes": sent}
        return {"eth0": Nic(None, counters, Taken(at, at + took)), "old": Nic(None, counters)}

    counting = Counting("n0", 0.0, nics(0.0, 0.0002, 100))
    counting.add(0.5, nics(0.5, 0.0002, 150))
    counting.add(1.0, nics(1.0, 0.08, 250))
    counting.add(1.5, nics(1.6, 0.0004, 300))
    eth0, old = counting.close(0.0)
    assert (old.marks, old.seconds) == (None, 1.5)
    assert eth0.marks == (Mark(0.5, 50, 100), Mark(1.6001, 200, 400))
    for number in range(40):  # a node with so many ports that it always takes 6 ms
        counting.add(2.0 + number, nics(2.0 + number, 0.006, 300 + number))
    assert len(counting.close(0.0)[0].marks or ()) > 15
    counting.add(50.0, nics(50.0, 0.0002, 10))
    assert counting.close(0.0)[0].marks == (), "counters that went back"


def test_a_port_whose_driver_is_slow_has_marks_beside_one_that_is_quick() -> None:
    """Each host with InfiniBand has Ethernet too: nothing was compared there where a reading took over 2 ms."""

    def nics(at: float) -> dict[str, Nic]:
        sent = int(100 * at)
        ib = {"port_xmit_packets": sent, "port_rcv_packets": sent, "tx_bytes": sent, "rx_bytes": sent}
        eth = {"tx_packets": sent, "rx_packets": sent, "tx_bytes": sent, "rx_bytes": sent}
        return {"eth0": Nic(None, eth, Taken(at, at + 0.0002)), "mlx5_0/1": Nic(None, ib, Taken(at, at + 0.005))}

    counting = Counting("n0", 0.0, nics(0.0))
    for number in range(1, 41):
        counting.add(number * 0.5, nics(number * 0.5))
        found = counting.close(0.0) if number == 20 else []
    found = counting.close(0.0)
    assert [len(each.marks or ()) for each in found] == [20, 20]


def test_windows_whose_ends_no_clock_tells_apart_end_no_verdict() -> None:
    """Such lines of one host, and nothing was said of all others."""
    cable = Wired(steady, 0.0, 20, 1)
    out, into = exact(cable, "tx", 2, seconds=20), exact(cable, "rx", 3, seconds=20)
    short = [msgspec.structs.replace(each, at=1e9, seconds=1e-9, marks=None) for each in into]
    assert wire_of([msgspec.structs.replace(each, at=1e9, seconds=1e-9, marks=None) for each in out], short) is None
    assert wire_of(out, short) is None
