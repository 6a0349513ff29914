"""CPU time that reports cost a controller, independent of other load: sockets, codec, brain and journal.

    python bench/reports.py [--agents 1000 4000 12500] [--rounds 20] [--json]

One process has the controller's own loop, connections, queue, ledger and journal, and real sockets. The bench writes to
their other ends in between, which is not counted. All ranks of all nodes run; in each round every node reports progress
once. Then, while the progress of all nodes is held, a rank of one node dies. `first stop` is the CPU time until the
first other node gets its order to stop, `last stop` until the last one; the held reports are on disk by then (settle_s
is 0 here). A `turn` is the work of the loop between two looks at its sockets and timers, in CPU time of its thread: the
delay that the loop itself causes.

`bench/agents.py` has real processes and waits; its figures describe Everstep only on a machine with free CPU time.
"""

import argparse
import asyncio
import gc
import json
import os
import resource
import socket
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec

import scale
from everstep.controller.loop import Controller
from everstep.controller.peers.connection import Connection
from everstep.controller.peers.gate import Gate
from everstep.controller.peers.peers import Peer
from everstep.controller.peers.readiness import Selector, spare_collector
from everstep.controller.record.ledger import Ledger
from everstep.controller.record.spec_file import SpecFile
from everstep.controller.record.thinning import RECORDS_PER_S
from everstep.core.state.frozenmap import FrozenMap
from everstep.core.state.policy import Policy
from everstep.model import events
from everstep.model.facts import Exit
from everstep.model.record import Record
from everstep.wire.codec import encode
from everstep.wire.credentials import RunSecret
from everstep.wire.messages import Command, FromController, Report
from fleets.fleet import RANKS, frame

AGE_S = 3_600.0
"""Of the generation: an older one is recorded less densely."""


class Loop(asyncio.SelectorEventLoop):
    """The controller's, with a look at the processor's clock around each turn."""

    def __init__(self) -> None:
        super().__init__(Selector())
        self.turns: list[float] = []

    def _run_once(self) -> None:
        begun = time.thread_time()
        super()._run_once()  # type: ignore[misc]
        self.turns.append(time.thread_time() - begun)

    def take_turns(self) -> list[float]:
        taken, self.turns = sorted(self.turns), []
        return taken


class Played:
    """A controller and its peers' ends of the sockets."""

    def __init__(self, num_agents: int, folder: Path) -> None:
        self.brain = scale.Fleet(num_agents)
        self.brain.begin()
        self.brain.form()
        for number in range(6):  # what runs has trained
            self.brain.progress(number)
        self.step = 6
        self.num_agents = num_agents
        secret = RunSecret("x" * 64, "bench")
        policy = Policy(node_silent_s=600.0, settle_s=0.0)
        wanted = SpecFile(run="bench", spec=self.brain.spec, policy=policy)
        self.ledger = Ledger.open(folder, wanted, pid=os.getpid(), at=0.0)
        self.controller = Controller(folder, wanted, self.ledger, Gate(secret, run="bench"))
        # Its timers are of the time that was played.
        self.ledger.state = msgspec.structs.replace(self.brain.state, timers=FrozenMap())
        self.secret = secret
        self.begun = time.time() - AGE_S
        spread_s = num_agents / RECORDS_PER_S  # as they are recorded in the long run
        for slot, node in enumerate(self.brain.state.slots):
            event = self._progress(slot, str(node), self.begun)
            self.ledger.thinning.note(Record(seq=1, at=self.begun, gen=0, event=event))
            self.ledger.thinning.note(Record(seq=1, at=time.time() - spread_s * slot / num_agents, gen=0, event=event))
        self.clients: list[socket.socket] = []
        self.seq = 0

    async def connect(self) -> None:
        loop = asyncio.get_running_loop()
        for node in self.brain.state.slots:
            ours, theirs = socket.socketpair()
            ours.setblocking(False)
            theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 17)
            name = str(node)
            peers, credentials = self.controller.peers, self.secret.credentials("agent", name)
            transport, _ = await loop.create_connection(asyncio.Protocol, sock=ours)
            line = Connection(transport, credentials, self.controller.gate, peers, lambda: None)
            transport.set_protocol(line)
            line._peer = Peer(name, "agent", line)  # it has proven who it is
            peers.admit(line._peer, "")
            theirs.setblocking(False)
            theirs.recv(1 << 16)
            self.clients.append(theirs)

    def _progress(self, slot: int, node: str, at: float) -> events.ProgressReported:
        known = [self.brain.state.workers[rank].account for rank in range(slot * RANKS, (slot + 1) * RANKS)]
        accounts = tuple(
            msgspec.structs.replace(account, last_step=self.step, last_step_at=at, published_step=self.step)
            for account in known
            if account is not None
        )
        return events.ProgressReported(at=at, node=node, generation=0, accounts=accounts)

    def write_round(self) -> None:
        """Every node reports once. Not counted."""
        self.seq, self.step = self.seq + 1, self.step + 1
        self.brain.at += 1.0
        for slot, (node, client) in enumerate(zip(self.brain.state.slots, self.clients, strict=True)):
            event = self._progress(slot, str(node), time.time())
            client.send(frame(encode(Report(source_seq=self.seq, event=event))))
        self.hear()

    def hear(self) -> int:
        """Bytes that the peers received."""
        size = 0
        for client in self.clients:
            try:
                while data := client.recv(1 << 18):
                    size += len(data)
            except BlockingIOError:
                continue
        return size

    async def until_settled(self) -> None:
        while any(self.ledger.last_seqs.get(str(node), 0) < self.seq for node in self.brain.state.slots[-400:]):
            await asyncio.sleep(0)
        while any(self.ledger.last_seqs.get(str(node), 0) < self.seq for node in self.brain.state.slots):
            await asyncio.sleep(0)

    async def die(self) -> dict[str, float]:
        """A rank of the first node is killed, and everybody has to be stopped."""
        node, told = str(self.brain.state.slots[0]), events.WorkerExited
        event = told(at=time.time(), node=node, generation=0, exit=Exit(rank=0, at=time.time(), signal=9))
        self.seq += 1
        held = len(self.ledger.thinning.held)
        self.hear()
        last = self.controller.peers.get(str(self.brain.state.slots[-1]))
        first = self.controller.peers.get(str(self.brain.state.slots[1]))
        assert first is not None
        assert last is not None
        at: dict[str, float] = {}
        begun, wall = time.process_time(), time.perf_counter()
        for name, peer in (("told_ms", first), ("all_ms", last)):

            def note(message: FromController, name: str = name, send: Any = peer.send) -> None:  # noqa: ANN401
                if isinstance(message, Command):
                    at.setdefault(name, 1e3 * (time.process_time() - begun))
                    at.setdefault(f"{name}_wall", 1e3 * (time.perf_counter() - wall))
                send(message)

            peer.send = note
        self.clients[0].send(frame(encode(Report(source_seq=self.seq, event=event))))
        while "all_ms" not in at:
            await asyncio.sleep(0.005)
        return {"held": held, **at}


async def measure(num_agents: int, rounds: int, folder: Path) -> dict[str, Any]:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, Loop)
    played = Played(num_agents, folder)
    await played.connect()
    working = asyncio.create_task(played.controller.run())
    gc.collect()
    spare_collector()
    costs, rss, seqs = [], [], []
    await asyncio.sleep(0)
    loop.take_turns()
    turns: list[float] = []
    for _ in range(rounds):
        played.write_round()
        seqs.append(played.ledger.journal.seq)
        loop.take_turns()
        begun = time.process_time()
        await played.until_settled()
        costs.append(1e6 * (time.process_time() - begun) / num_agents)
        turns += loop.take_turns()[:-1]  # the last is not over
        rss.append(int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 1e6)
    turns.sort()
    row: dict[str, Any] = {"agents": num_agents, "us": statistics.median(costs), "us_best": min(costs)}
    row |= {"turn_p99_ms": 1e3 * turns[int(0.99 * (len(turns) - 1))], "turn_ms": 1e3 * turns[-1]}
    row |= {"recorded": (played.ledger.journal.seq - seqs[0]) / rounds, "rss_mb": rss}
    loop.take_turns()
    row |= await played.die()
    row["loud_turn_ms"] = 1e3 * max(loop.take_turns())
    row["dropped"] = dict(played.controller.dropped)
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)
    played.ledger.close()
    for client in played.clients:
        client.close()
    return row


COLUMNS = {
    "agents": ("agents", "{:,}"),
    "us": ("a report", "{:.0f} us"),
    "us_best": ("best", "{:.0f} us"),
    "recorded": ("on record", "{:,.0f}"),
    "turn_p99_ms": ("turn p99", "{:.1f} ms"),
    "turn_ms": ("longest", "{:.1f} ms"),
    "held": ("held", "{:,}"),
    "told_ms": ("first stop", "{:.0f} ms"),
    "all_ms": ("last stop", "{:.0f} ms"),
    "told_ms_wall": ("first stop, wall", "{:.0f} ms"),
    "loud_turn_ms": ("longest turn", "{:.0f} ms"),
}


def render(rows: list[dict[str, Any]]) -> str:
    lines = [[title for title, _ in COLUMNS.values()]]
    lines += [[form.format(row[name]) for name, (_, form) in COLUMNS.items()] for row in rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(COLUMNS))]
    text = ["  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines]
    for row in rows:
        few = row["rss_mb"][:: max(1, len(row["rss_mb"]) // 6)]
        text.append(f"{row['agents']:,} agents, memory in the rounds: {', '.join(f'{mb:,.0f}' for mb in few)} MB")
    return "\n".join([*text, f"load average {os.getloadavg()[0]:.1f}"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=int, nargs="+", default=[1_000, 4_000, 12_500])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    wanted = 2 * max(given.agents) + 200
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), max(hard, wanted)))
    except (OSError, ValueError):
        parser.error(f"{max(given.agents)} agents need {wanted} open files, and {hard} are allowed (ulimit -Hn)")
    rows = []
    for num_agents in given.agents:
        with tempfile.TemporaryDirectory(prefix="everstep-reports-") as folder:
            with asyncio.Runner(loop_factory=Loop) as runner:
                rows.append(runner.run(measure(num_agents, given.rounds, Path(folder))))
        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    print(json.dumps(rows) if given.json else render(rows))


if __name__ == "__main__":
    main()
