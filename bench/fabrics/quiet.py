"""False alarms and cost of `everstep fabric watch` as it is run: a process on each of 16 hosts, beside TCP.

Without `--cable` no cable has a limit. With it each carries so much, TCP fills those between leaves and spines, and
`everstep fabric counters` runs on every node.
"""

import argparse
import contextlib
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from everstep.fabric.locate.blame import Verdict, blame
from everstep.fabric.locate.loads import Load, loads_of
from everstep.fabric.locate.observations import Counted, Link, Seen
from everstep.fabric.probing.coverage import plan_probes
from everstep.fabric.topology.values import Cable, Host, Port, Switch, Topology
from fabrics.bed import PORT, Clos

T = TypeVar("T")
RATE = 15.0
WINDOW_S = 10.0
FINE_S = 1.0
"""Windows of watchers and counters where cables are full: what is lost while none is full is told apart."""
OLDEST_S = 60.0
BEGIN_S = 300.0
TOPOLOGY = "topology.json"
MBIT = 20  # of TCP, out of each host
SOURCES = range(40_000, 40_004)
SINK = """
import socket, sys, threading
server = socket.create_server((sys.argv[1], 5001))
def drain(end):
    while end.recv(1 << 16): pass
while True: threading.Thread(target=drain, args=(server.accept()[0],), daemon=True).start()
"""
SOURCE = """
import socket, sys
end = socket.socket()
end.setsockopt(socket.SOL_SOCKET, 47, int(float(sys.argv[2]) * 1e6 / 8))  # SO_MAX_PACING_RATE
end.connect((sys.argv[1], 5001))
while True: end.sendall(bytes(1 << 15))
"""


class Watchers:
    """`everstep fabric watch` on every host."""

    def __init__(self, bed: Clos, folder: Path, every_s: float = WINDOW_S) -> None:
        paths = {
            (one, other, port): bed.path(one, other, port, PORT)
            for one, other in itertools.permutations(bed.hosts, 2)
            for port in SOURCES
        }
        plan = plan_probes(paths, least=6, most_per_host=12)
        self.num_flows = len(plan.flows)
        self._folder, self._read = folder, dict.fromkeys(bed.hosts, 0)
        self._processes = {}
        for host in bed.hosts:
            lines = [
                {"to": bed.address[flow[1]], "port": flow[2], "there": paths[flow],
                 "back": bed.path(flow[1], flow[0], PORT, flow[2])}
                for flow in plan.flows if flow[0] == host
            ]  # fmt: skip
            (folder / f"{host}.flows").write_text("".join(json.dumps(line) + "\n" for line in lines))
            command = [sys.executable, "-m", "everstep", "fabric", "watch", str(folder / f"{host}.flows")]
            flags = ["--address", bed.address[host], "--rate", str(RATE), "--every", str(every_s)]
            with (folder / f"{host}.out").open("wb") as out, (folder / f"{host}.err").open("wb") as err:
                self._processes[host] = inside(bed, host, [*command, *flags], stdout=out, stderr=err)

    def wait(self) -> None:
        """Until all of them watch: who has not begun answers nothing."""
        ends_at = time.monotonic() + BEGIN_S
        while not all((self._folder / f"{host}.out").stat().st_size for host in self._read):
            if time.monotonic() > ends_at:
                raise SystemExit(f"not all watchers have begun after {BEGIN_S:g} s")
            time.sleep(0.5)

    def new(self) -> list[Seen]:
        return _new_lines(self._folder, self._read, Seen)

    def left_out(self) -> int:
        return sum((self._folder / f"{host}.err").read_text().count("is left out") for host in self._read)

    def cpu_s(self) -> float:
        pids = [process.pid for process in self._processes.values()]
        return sum(int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) for pid in pids) / 1e9

    def hurry(self) -> None:
        hurry(self._processes.values())

    def close(self) -> None:
        end([*self._processes.values()])


class Counters:
    """`everstep fabric counters` on every host and switch."""

    def __init__(self, bed: Clos, folder: Path, cable: str) -> None:
        """`cable`: what each one carries, in words of tc. It is shaped so here."""
        bps = float(cable.removesuffix("mbit")) * 1e6
        bed.shape(cable)
        ends = [[Port(node=a, name=f"to-{b}", bps=bps) for a, b in (way, way[::-1])] for way in bed.cables]
        self.topology = Topology(source="bed", hosts=tuple(Host(name=name) for name in bed.hosts),
                                  switches=tuple(Switch(name=name) for name in (*bed.leaves, *bed.spines)),
                                  cables=tuple(Cable(one=one, other=other) for one, other in ends))  # fmt: skip
        (folder / TOPOLOGY).write_bytes(msgspec.json.encode(self.topology))
        self._folder, self._read = folder, {f"{switch}.counted": 0 for switch in (*bed.hosts, *bed.leaves, *bed.spines)}
        self._kept: list[Counted] = []
        self._processes = []
        for name in self._read:
            node = name.removesuffix(".counted")
            command = [sys.executable, "-m", "everstep", "fabric", "counters", "--node", node, "--every", str(FINE_S)]
            with (folder / f"{name}.out").open("wb") as out:
                self._processes.append(inside(bed, node, command, stdout=out))

    def counted(self) -> list[Counted]:
        """Since the last time."""
        return _new_lines(self._folder, self._read, Counted)

    def loads(self, before_s: float) -> tuple[dict[Link, Load], dict[Link, Load]]:
        """Of the last minute, and of the last window only; as of so many seconds ago."""
        new, now = self.counted(), time.time() - before_s
        self._kept = [each for each in self._kept if (each.at or 0) > now - OLDEST_S] + new
        last = [each for each in self._kept if now - WINDOW_S < (each.at or 0) <= now]
        return loads_of(self._kept, self.topology), loads_of(last, self.topology)

    def hurry(self) -> None:
        hurry(self._processes)

    def close(self) -> None:
        end(self._processes)


def _new_lines(folder: Path, read: dict[str, int], kind: type[T]) -> list[T]:
    """What has been printed since the last time, whole lines."""
    found = []
    for name, at in read.items():
        data = (folder / f"{name}.out").read_bytes()[at:]
        whole = data[: data.rfind(b"\n") + 1]
        read[name] = at + len(whole)
        found += [msgspec.json.decode(line, type=kind) for line in whole.splitlines()]
    return found


def inside(bed: Clos, host: str, command: list[str], **options: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen(["ip", "netns", "exec", bed.ns(host), *command], **options)  # type: ignore[call-overload]


def hurry(processes: Iterable[subprocess.Popen[bytes]]) -> None:
    """They run before all others, as they would on nodes of their own: here all wake up at the same time."""
    for each in processes:
        os.sched_setscheduler(each.pid, os.SCHED_FIFO, os.sched_param(1))


def end(processes: list[subprocess.Popen[bytes]]) -> None:
    for each in processes:
        each.kill()
        each.wait()


def fill(bed: Clos) -> list[subprocess.Popen[bytes]]:
    """TCP from each host to the one five further."""
    sinks = [inside(bed, host, [sys.executable, "-c", SINK, bed.address[host]]) for host in bed.hosts]
    time.sleep(3)
    sources = []
    for number, host in enumerate(bed.hosts):
        to = bed.address[bed.hosts[(number + 5) % len(bed.hosts)]]
        sources.append(inside(bed, host, [sys.executable, "-c", SOURCE, to, str(MBIT)], stderr=subprocess.DEVNULL))
    return [*sinks, *sources]


def across(bed: Clos, way: tuple[str, str], mbit: float) -> list[subprocess.Popen[bytes]]:
    """TCP that crosses a leaf's cable: six connections, as which spine each takes is not known."""
    leaf = way[0] if way[0] in bed.leaves else way[1]
    near = [host for host in bed.hosts if bed.leaf_of[host] == leaf]
    far = [host for host in bed.hosts if bed.leaf_of[host] != leaf]
    pairs = [(near[n % len(near)], far[n]) if way[0] == leaf else (far[n], near[n % len(near)]) for n in range(6)]
    load = [inside(bed, to, [sys.executable, "-c", SINK, bed.address[to]]) for to in dict.fromkeys(p[1] for p in pairs)]
    time.sleep(0.7)
    for one, to in pairs:
        command = [sys.executable, "-c", SOURCE, bed.address[to], str(mbit)]
        load.append(inside(bed, one, command, stderr=subprocess.DEVNULL))
    return load


def sent(bed: Clos) -> int:
    """Bytes that all hosts have sent."""
    return sum(bed.inside(host, lambda device=f"to-{bed.leaf_of[host]}:": tx_bytes(device)) for host in bed.hosts)


def tx_bytes(device: str) -> int:
    """Of this thread's namespace."""
    lines = Path("/proc/thread-self/net/dev").read_text().splitlines()
    return next(int(line.split()[9]) for line in lines if line.split()[:1] == [device])


def quiet(given: argparse.Namespace) -> None:
    with running(given.cable, given.keep, is_realtime=given.realtime) as (bed, watchers, counters):
        judge(bed, watchers, counters, given.seconds)


@contextlib.contextmanager
def running(
    cable: str | None, keep: Path | None = None, *, is_realtime: bool = False
) -> Iterator[tuple[Clos, Watchers, Counters | None]]:
    """The bed under load, watched for two windows. `keep`: where all lines and the topology stay, for `everstep fabric
    blame`. `is_realtime`: watchers and counters run before all others, once they have begun."""
    with contextlib.ExitStack() as made:
        name = keep or made.enter_context(tempfile.TemporaryDirectory(prefix="everstep-bench-"))
        Path(name).mkdir(parents=True, exist_ok=True)
        bed = Clos()
        made.callback(bed.close)
        counters = Counters(bed, Path(name), cable) if cable else None
        if counters is not None:
            made.callback(counters.close)
        load = fill(bed)
        made.callback(end, load)
        watchers = Watchers(bed, Path(name), FINE_S if cable else WINDOW_S)
        made.callback(watchers.close)
        watchers.wait()
        if is_realtime:
            watchers.hurry()
            if counters is not None:
                counters.hurry()
        time.sleep(2 * WINDOW_S)
        watchers.new()
        yield bed, watchers, counters


class Tally:
    """What verdicts on windows without a fault say."""

    def __init__(self) -> None:
        self.windows = self.alarms = self.unsure = self.packets = self.full = self.broken = 0
        self.unjudged = dict.fromkeys(("full", "beside full", "no probes"), 0)

    def add(self, verdict: Verdict, seen: list[Seen], after_s: float) -> None:
        self.windows += 1
        self.packets += sum(each.sent for each in seen)
        self.full += len(verdict.full)
        for each in verdict.unjudged:
            self.unjudged[each.why] += 1
        faults = (*verdict.faults, *verdict.slow)
        self.alarms += any(not fault.may_be_full for fault in faults)
        self.unsure += any(fault.may_be_full for fault in faults)
        if faults:
            print(f"named after {after_s:.0f} s:", *told(verdict), flush=True)

    def __str__(self) -> str:
        num = max(1, self.windows)
        unjudged = ", ".join(f"{total / num:.1f} {why}" for why, total in self.unjudged.items())
        return (
            f"{self.alarms} false alarms in {self.windows} verdicts on {WINDOW_S:g} s ({self.unsure} said that it may "
            f"be a full link), {self.packets:,} packets judged; links of a verdict: {self.full / num:.1f} full at "
            f"times, not judged: {unjudged}"
        )


def judge(bed: Clos, watchers: Watchers, counters: Counters | None, seconds: float) -> None:
    hosts, tally = frozenset(bed.hosts), Tally()
    began, used, moved = time.monotonic(), watchers.cpu_s(), sent(bed)
    left_out = watchers.left_out()
    links = [way for cable in bed.cables for way in (cable, cable[::-1])]
    seen, now = list[Seen](), time.time()
    while time.monotonic() < began + seconds:
        time.sleep(WINDOW_S)
        before, seen = seen, watchers.new()
        read_at, now = now, time.time()
        if counters and not before:
            continue  # one step later than it was seen: counters may be printed later than probes
        given = before if counters else seen
        for loads in counters.loads(time.time() - read_at) if counters else (None,):
            tally.add(blame(given, hosts, loads, links), given, time.monotonic() - began)
    wall = time.monotonic() - began
    own, num = watchers.num_flows / len(hosts), len(hosts)
    cpu = (watchers.cpu_s() - used) / wall / num
    filled = (sent(bed) - moved) * 8 / wall / num / 1e6
    out = watchers.left_out() - left_out
    rate = own * RATE * 2 * (32 + 42) * 8 / 1e6
    print(f"{tally}; {2 * len(bed.cables)} links; {out} windows of hosts left out (late); {filled:.1f} Mbit/s out of "
          f"each host; probing: {cpu:.2%} of a core and {rate:.2f} Mbit/s for each host")  # fmt: skip


def told(verdict: Verdict) -> list[str]:
    return [
        f"{[suspect.name for suspect in fault.suspects]} {what} {fault.rate:.2%}, {fault.bad} packets"
        + (", or full" if fault.may_be_full else "")
        for what, faults in (("loses", verdict.faults), ("late", verdict.slow))
        for fault in faults
    ]
