"""Probes: losses there and back told apart by counters alone, over real sockets and with packets that lie."""

import contextlib
import itertools
import json
import random
import socket
import struct
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from free_ports import free_port
from hypothesis import given
from hypothesis import strategies as st

from everstep.cli.main import main
from everstep.fabric.locate.observations import Seen
from everstep.fabric.probing import udp
from everstep.fabric.probing.dating import TIMESTAMPNS, Dating
from everstep.fabric.probing.flow import LATE_US, TIMEOUT_US, Delays, Flow
from everstep.fabric.probing.packets import SIZE, Echo, Probe, pack_echo, pack_probe, read_echo, read_probe
from everstep.fabric.probing.udp import Prober, Responder
from everstep.fabric.probing.watch import MOST_LATE_S, TICK_S, Planned, Watched, watch

SETTLED = TIMEOUT_US + 1


class Peer:
    """The other side of a flow, and the two ways between."""

    def __init__(self, flow: Flow) -> None:
        self.flow, self.received, self.now = flow, 0, 0

    def exchange(self, *, there: bool = True, back: bool = True) -> None:
        self.now += 1000
        number = self.flow.add_sent(self.now)
        if there:
            self.received += 1
            if back:
                self.flow.add_echo(number, self.received, 0, self.now, self.now)

    def close(self, wait_us: int = SETTLED):
        self.now += wait_us
        return self.flow.close(self.now)


def test_losses_there_and_back_are_told_apart() -> None:
    peer = Peer(Flow(1))
    draw = random.Random(1)
    there = back = 0
    for _ in range(500):
        lost_there, lost_back = draw.random() < 0.1, draw.random() < 0.2
        peer.exchange(there=not lost_there, back=not lost_back)
        there, back = there + lost_there, back + (not lost_there and lost_back)
    peer.exchange()
    window = peer.close()
    assert window.there == (501, there)
    assert window.back == (501 - there, back)
    assert window.unknown == (0, 0)


def test_windows_add_up_to_what_was_sent() -> None:
    draw = random.Random(2)
    for seed in range(50):
        peer = Peer(Flow(seed))
        total = bad = 0
        for _ in range(draw.randint(1, 6)):
            rate = draw.choice([0.0, 0.1, 0.5, 1.0])
            for _ in range(draw.randint(0, 40)):
                peer.exchange(there=draw.random() >= rate, back=draw.random() >= rate)
            window = peer.close()
            total += window.there[0] + window.unknown[0]
            bad += window.there[1] + window.back[1] + window.unknown[1]
        assert total == peer.flow.sent
        assert bad == peer.flow.sent - peer.flow._echoes


def test_a_dead_way_is_of_unknown_direction() -> None:
    peer = Peer(Flow(1))
    for _ in range(20):
        peer.exchange()
    for _ in range(30):
        peer.exchange(there=False)
    window = peer.close()
    assert (window.there, window.unknown) == ((20, 0), (30, 30))


def test_probes_on_their_way_are_of_the_next_window() -> None:
    peer = Peer(Flow(1))
    peer.exchange()
    peer.exchange(there=False)
    assert peer.close(wait_us=10).unknown == (0, 0)
    assert peer.close().unknown == (1, 1)


@pytest.mark.parametrize(("number", "received", "late"), [(0, 1, 0), (9, 1, 0), (1, 9, 0), (1, 1, 2)])
def test_echoes_that_cannot_be_are_ignored(number: int, received: int, late: int) -> None:
    flow = Flow(1)
    flow.add_sent(0)
    flow.add_echo(number, received, late, 0, 0)
    assert flow.close(SETTLED).unknown == (1, 1)


def test_late_packets_are_counted_without_equal_clocks() -> None:
    delays = Delays()
    for offset in (0, 500, 900, LATE_US + 1, LATE_US + 100_000):
        delays.add(10_000_000, 3_000_000 + offset)
    assert delays.late == 2
    delays.add(10_000_000, 900_000_000_000)  # a clock that jumps is no late packet, and the next ones are not either
    delays.add(10_000_000, 900_000_000_100)
    delays.add(10_000_000, 3_000_000)
    assert delays.late == 2


@given(st.binary(max_size=64))
def test_foreign_packets_are_nothing(data: bytes) -> None:
    for read in (read_probe, read_echo):
        assert read(data) is None or data[:3] == b"esp"


def test_packets_come_back_and_nothing_is_amplified() -> None:
    probe, echo = Probe(1, 2, 3), Echo(1, 2, 3, 4, 5)
    assert read_probe(pack_probe(probe)) == probe
    assert read_echo(pack_echo(echo)) == echo
    assert len(pack_probe(probe)) == len(pack_echo(echo)) == SIZE
    assert read_probe(pack_echo(echo)) is None


def _free_port() -> int:
    return free_port(kind=socket.SOCK_DGRAM)


def test_probes_over_real_sockets() -> None:
    port, sources = _free_port(), [_free_port() for _ in range(2)]
    responder = Responder("127.0.0.1", port)
    prober = Prober(
        "127.0.0.1", [("127.0.0.1", sources[0]), ("127.0.0.1", sources[1]), ("127.0.0.2", sources[0])], port
    )
    try:
        stranger = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        stranger.sendto(b"hello", ("127.0.0.1", port))
        stranger.sendto(pack_echo(Echo(1, 1, 1, 1, 1)), ("127.0.0.1", sources[0]))
        stranger.close()
        deadline = time.monotonic() + 10
        for _ in range(30):
            for place in range(3):
                prober.send(place)
            responder.answer()
            prober.receive()
        while prober._flows[1]._echoes < 30 and time.monotonic() < deadline:
            responder.answer()
            prober.receive()
        one, two, _ = prober.close_window()
        assert (one.there, one.back) == ((30, 0), (30, 0))
        assert (two.there, two.back) == ((30, 0), (30, 0))
    finally:
        prober.close()
        responder.close()


def test_a_process_that_reads_late_makes_no_packet_late() -> None:
    """The kernel has dated them."""
    port, source = _free_port(), _free_port()
    responder, prober = Responder("127.0.0.1", port), Prober("127.0.0.1", [("127.0.0.1", source)], port)
    try:
        for turn in range(12):
            prober.send(0)
            time.sleep(0.03 * (turn % 3))
            responder.answer()
            time.sleep(0.03 * (turn % 2))
            prober.receive()
        (window,) = prober.close_window()
    finally:
        prober.close()
        responder.close()
    assert window.there == (12, 0)
    assert (window.late_there[1], window.late_back[1]) == (0, 0)


class Clocks:
    """A monotonic clock and a wall clock, in nanoseconds."""

    def __init__(self) -> None:
        self.now, self.ahead = 5_000_000_000, 1_700_000_000_000_000_000

    def monotonic(self) -> int:
        self.now += 1_000
        return self.now

    def wall(self) -> int:
        return self.now + self.ahead

    def stamp(self) -> list[tuple[int, int, bytes]]:
        return [(socket.SOL_SOCKET, TIMESTAMPNS, struct.pack("@qq", *divmod(self.wall(), 1_000_000_000)))]


@pytest.mark.parametrize("step_s", [-3600, -5, -0.05, 0.05, 5, 3600])
def test_a_wall_clock_that_is_set_dates_no_packet_wrongly(step_s: float) -> None:
    clocks = Clocks()
    dating, dates = Dating(clocks.monotonic, clocks.wall), []
    for turn in range(50):
        if turn == 20:
            clocks.ahead += int(step_s * 1e9)
        stamp, came_us = clocks.stamp(), clocks.now // 1000
        if turn == 30:  # between the packet and the look at it
            clocks.ahead += int(step_s * 1e9)
        clocks.now += 100_000_000
        dating.look()
        date_us = dating.date_us(stamp)
        if date_us is not None:
            dates.append(date_us - came_us)
    assert len(dates) == 48
    assert max(map(abs, dates)) < 50


def test_losing_the_processor_between_two_clocks_dates_no_packet_too_early() -> None:
    clocks, looks = Clocks(), itertools.count()

    def wall() -> int:
        clocks.now += 30_000_000 * (next(looks) % 5 != 3)
        return clocks.wall()

    dating = Dating(clocks.monotonic, wall)
    for _ in range(10):
        stamp, came_us = clocks.stamp(), clocks.now // 1000
        dating.look()
        date_us = dating.date_us(stamp)
        assert date_us is not None
        assert abs(date_us - came_us) < 50


def test_one_look_at_the_clocks_is_enough_where_the_process_runs() -> None:
    clocks, reads = Clocks(), itertools.count()

    def wall() -> int:
        next(reads)
        return clocks.wall()

    dating = Dating(clocks.monotonic, wall)
    for _ in range(10):
        dating.look()
    assert next(reads) == 11


def test_a_round_looks_at_the_clocks_once_for_all_source_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = list[Dating]()
    monkeypatch.setattr(Dating, "look", lambda self: looks.append(self))
    ends = [("127.0.0.1", _free_port()) for _ in range(4)]
    prober = Prober("127.0.0.1", ends, _free_port())
    prober.receive()
    prober.close()
    assert len(looks) == 1


def test_a_longer_packet_is_no_probe() -> None:
    port, source = _free_port(), _free_port()
    responder = Responder("127.0.0.1", port)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        asking.bind(("127.0.0.1", source))
        asking.settimeout(5)
        asking.sendto(pack_probe(Probe(1, 1, 1)) + b"more", ("127.0.0.1", port))
        asking.sendto(pack_probe(Probe(1, 7, 1)), ("127.0.0.1", port))
        responder.answer()
        echo = read_echo(asking.recv(2048))
    responder.close()
    assert echo is not None
    assert (echo.number, echo.received) == (7, 1)


@pytest.mark.parametrize(("every_s", "most"), [(10.0, 31), (1.0, 4)])
def test_this_host_wakes_up_three_times_a_second(every_s: float, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each time costs more than the packets it reads."""
    slept, reads = list[float](), itertools.count(1000.0, 1e-6)
    clock = SimpleNamespace(sleep=slept.append, monotonic=lambda: next(reads) + sum(slept), time=time.time)
    monkeypatch.setattr("everstep.fabric.probing.watch.time", clock)
    flows = [Planned(to="127.0.0.1", port=_free_port(), there=("a", "b"), back=("b", "a"))]
    windows = watch("127.0.0.1", _free_port(), flows, rate=15.0, every_s=every_s)
    next(windows)
    windows.close()  # type: ignore[attr-defined]
    assert len(slept) <= most
    assert 2 * (TICK_S + MOST_LATE_S) * 1e6 < TIMEOUT_US


def test_more_packets_than_a_socket_holds_until_the_next_look_are_not_lost() -> None:
    """4,000 a second: at five looks a second, most of them found no room, and the network was blamed."""
    flows = [Planned(to="127.0.0.1", port=_free_port(), there=("a", "b"), back=("b", "a")) for _ in range(4)]
    windows = watch("127.0.0.1", _free_port(), flows, rate=1000.0, every_s=0.5)
    listed = list(itertools.islice(windows, 6))
    windows.close()  # type: ignore[attr-defined]
    sent, bad = (sum(getattr(seen, name) for each in listed for seen in each.seen) for name in ("sent", "bad"))
    assert sent > 2000
    assert not bad or any(each.dropped for each in listed), "what the kernel dropped for lack of room is said"
    assert bad < 0.2 * sent, "a machine that tests may be busy, but not for half of the time"


@pytest.mark.parametrize("rate", [700, 3000, 9000])
def test_a_host_that_answers_many_reads_before_a_socket_is_full(rate: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every other wake-up came after 0.34 s again, whatever had come before: each second window was left out."""
    now, most = [1000.0], []

    class Waiting:
        """Of the responder's socket: so many packets a second come while it sleeps."""

        def __init__(self, *_: object) -> None:
            self.read_at = now[0]

        def answer(self) -> int:
            packets = round((now[0] - self.read_at) * rate)
            self.read_at = now[0]
            most.append(packets)
            return packets

        def dropped(self) -> int:
            return 0

        def close(self) -> None:
            pass

    def sleep(seconds: float) -> None:
        now[0] += seconds

    clock = SimpleNamespace(sleep=sleep, monotonic=lambda: now[0], time=time.time)
    monkeypatch.setattr("everstep.fabric.probing.watch.time", clock)
    monkeypatch.setattr("everstep.fabric.probing.watch.Responder", Waiting)
    windows = watch("127.0.0.1", _free_port(), [], rate=15.0, every_s=1.0)
    for _ in range(4):
        next(windows)
    windows.close()  # type: ignore[attr-defined]
    assert max(most) < 200
    assert len(most) < 4 * (3 + rate / 100), "and wakes up no more often than that needs"


def test_packets_for_which_a_host_left_no_room_are_no_loss_of_the_network(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    port = _free_port()
    responder = Responder("127.0.0.1", port)
    assert responder.dropped() == 0
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as flood:
        for _ in range(5000):
            flood.sendto(b"x" * 32, ("127.0.0.1", port))
    assert responder.dropped() > 0
    responder.close()
    (tmp_path / "flows").write_text(json.dumps({**FLOW, "port": _free_port()}))
    seen = Seen(nodes=("n0", "leaf0", "n1"), sent=90, bad=40)
    monkeypatch.setattr("everstep.cli.fabric.links.watch.watch", lambda *_, **__: iter([Watched([seen], 0.0, 40)]))
    assert main(["fabric", "watch", str(tmp_path / "flows"), "--address", "127.0.0.1", "--windows", "1"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["nodes"] == ["n0"]
    assert "a window is left out: 40 packets came faster than it reads" in printed.err


def test_a_packet_without_a_stamp_is_not_dated() -> None:
    clocks = Clocks()
    dating = Dating(clocks.monotonic, clocks.wall)
    dating.look()
    assert dating.date_us([]) is None
    assert dating.date_us([(socket.SOL_SOCKET, TIMESTAMPNS, b"short")]) is None
    delays = Delays()
    for came_us in (100, None, 200, None):
        delays.add(0, came_us)
    assert delays.late == 0


FLOW = {"to": "127.0.0.1", "port": 1, "there": ["n0", "leaf0", "n1"], "back": ["n1", "leaf0", "n0"]}


def test_a_host_watches_and_its_lines_are_blamed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """To itself, and to an address at which nothing answers."""
    monkeypatch.setattr("everstep.cli.fabric.links.watch.MOST_LATE_S", 1e9)  # machines that test are busy
    flows, probes = tmp_path / "flows.jsonl", tmp_path / "probes.jsonl"
    dead = {"to": "127.0.0.3", "there": ["n0", "leaf0", "n2"], "back": ["n2", "leaf0", "n0"]}
    lines = [{**FLOW, "port": _free_port()}, {**FLOW, "port": _free_port(), **dead}]
    flows.write_text("\n".join(json.dumps(line) for line in lines))
    common = [
        "--address",
        "127.0.0.1",
        "--port",
        str(_free_port()),
        "--rate",
        "100",
        "--every",
        "0.9",
        "--windows",
        "2",
    ]
    assert main(["fabric", "watch", str(flows), *common]) == 0
    probes.write_text(capsys.readouterr().out)
    assert main(["fabric", "blame", str(probes)]) == 1
    page = capsys.readouterr().out
    assert "n2" in page
    assert "n1" not in page


def test_a_window_in_which_this_process_was_late_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    flows = tmp_path / "flows.jsonl"
    flows.write_text(json.dumps({**FLOW, "port": _free_port()}))
    monkeypatch.setattr("everstep.cli.fabric.links.watch.MOST_LATE_S", -1.0)  # any lateness is too much
    often = ["--rate", "100", "--every", "0.2", "--windows", "1", "--port", str(_free_port())]
    assert main(["fabric", "watch", str(flows), "--address", "127.0.0.1", *often]) == 0
    printed = capsys.readouterr()
    (line,) = printed.out.splitlines()  # so that others' losses to this host are no evidence either
    assert (json.loads(line)["nodes"], json.loads(line)["sent"]) == (["n0"], 0)
    assert "a window is left out: this process was" in printed.err


@pytest.mark.parametrize(
    ("change", "flags"),
    [
        ({"to": "localhost"}, []),
        ({"port": 0}, []),
        ({"there": ["n0"]}, []),
        ({"back": ["n1", "leaf0", "n5"]}, []),
        ({"port": "x"}, []),
        ({}, ["--rate", "0"]),
        ({}, ["--address", "203.0.113.7"]),
        ({}, ["--address", "x"]),
    ],
)
def test_bad_flows(
    change: dict[str, object], flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flows = tmp_path / "flows.jsonl"
    flows.write_text(json.dumps({**FLOW, **change}))
    assert main(["fabric", "watch", str(flows), "--address", "127.0.0.1", "--windows", "1", *flags]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_clocks_that_drift_apart_make_no_packet_late() -> None:
    delays, queued = Delays(), Delays()
    for second in range(0, 3600, 2):
        sent = second * 1_000_000
        delays.add(sent, sent + 300 + second * 80)
        queued.add(sent, sent + 300 + (30_000 if second >= 600 else 0))
    assert delays.late == 0
    assert queued.late > 60  # of a queue that stays


@pytest.mark.parametrize("num_addresses", [1, 300], ids=["one stranger", "addresses of its choice"])
def test_flows_of_strangers_take_no_place_of_a_flow_that_goes_on(monkeypatch, num_addresses: int) -> None:
    """Else a loss that never was is blamed on the way there."""
    monkeypatch.setattr(udp, "MOST_FLOWS", 2000)
    monkeypatch.setattr(udp, "MOST_OF_HOST", 500)
    port = free_port()
    responder = Responder("127.0.0.1", port)
    with contextlib.closing(responder), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as prober:
        prober.bind(("127.0.0.1", 0))
        prober.settimeout(60.0)

        def counted(number: int) -> int:
            prober.sendto(pack_probe(Probe(7, number, 0)), ("127.0.0.1", port))
            while not responder.answer():
                time.sleep(0.001)
            return read_echo(prober.recv(4096)).received

        assert [counted(number) for number in (1, 2, 3)] == [1, 2, 3]
        for address in range(num_addresses):
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
                stranger.bind((f"127.1.{address >> 8}.{address & 255}", 0))
                for flow in range(3000 // num_addresses):
                    stranger.sendto(pack_probe(Probe(flow, 1, 0)), ("127.0.0.1", port))
                    responder.answer()
        while responder.answer():
            pass
        assert counted(4) == 4
