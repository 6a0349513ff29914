"""Reports of peers: at once or through the queue, always in a peer's own order; acknowledged together; never lost."""

import asyncio
import functools
import selectors
import socket

import pytest

from everstep.controller.peers.gate import Gate
from everstep.controller.peers.peers import MAX_OWED, Peer, Peers
from everstep.controller.peers.readiness import MOST_AT_ONCE, Selector
from everstep.model.events import ProgressReported, TemplateReported
from everstep.model.spec import RunSpec
from everstep.wire.codec import encode
from everstep.wire.credentials import RunSecret
from everstep.wire.messages import Ack, Beat, Report, Welcome


def in_a_loop(story):
    @functools.wraps(story)
    def test():
        asyncio.run(story())

    return test


class Line:
    """What was said over it."""

    def __init__(self) -> None:
        self.sent: list[object] = []
        self.num_resumed = 0

    def send(self, message: object) -> None:
        self.sent.append(message)

    def end(self, why: str) -> None:
        self.sent.append(why)

    def go_on(self) -> None:
        self.num_resumed += 1

    @property
    def acknowledged(self) -> list[int]:
        return [message.source_seq for message in self.sent if isinstance(message, Ack)]


class Link:
    """Peers of a controller that holds progress back and queues everything else."""

    def __init__(self, room: int = 100) -> None:
        self.taken: list[int] = []
        self.queue = asyncio.Queue(room)
        self.peers = Peers(
            spec=RunSpec(program="train.py"),
            gate=Gate(RunSecret("secret of a test, and long enough", "r1"), run="r1"),
            put=self.queue,
            listener=self,
        )

    def last_seq(self, name: str) -> int:
        return 0

    def connected(self, peer: Peer) -> None: ...

    def heard(self, name: str) -> None: ...

    def settle_at_once(self, name: str, seq: int, event: object) -> bool:
        if not isinstance(event, ProgressReported):
            return False
        self.taken.append(seq)
        return True

    def joined(self, name: str = "n0") -> tuple[Peer, Line]:
        line = Line()
        peer = Peer(name, "agent", line)
        self.peers.admit(peer, "")
        return peer, line

    def say(self, peer: Peer, seq: int, *, loud: bool = False) -> bool:
        event = (
            TemplateReported(at=1.0, node=peer.name, usable=True)
            if loud
            else ProgressReported(at=1.0, node=peer.name, generation=0, accounts=())
        )
        return self.peers.hear(peer, bytearray(encode(Report(source_seq=seq, event=event))), is_binary=True)


@in_a_loop
async def test_many_reports_have_one_acknowledgement():
    link = Link()
    peer, line = link.joined()
    for seq in range(1, MAX_OWED):
        link.say(peer, seq)
    assert line.acknowledged == []
    rounds = asyncio.create_task(link.peers.acknowledge())
    async with asyncio.timeout(60):
        while not line.acknowledged:
            await asyncio.sleep(0.01)
    rounds.cancel()
    assert line.acknowledged == [MAX_OWED - 1]
    for seq in range(MAX_OWED, 2 * MAX_OWED):
        link.say(peer, seq)
    assert line.acknowledged == [MAX_OWED - 1, 2 * MAX_OWED - 1], "so many are not left waiting"


@in_a_loop
async def test_what_is_behind_a_report_in_the_queue_waits_for_it():
    link = Link()
    peer, line = link.joined()
    link.say(peer, 1)
    link.say(peer, 2, loud=True)
    link.say(peer, 3)
    assert (link.taken, link.queue.qsize(), line.acknowledged) == ([1], 2, [])
    loud, after = link.queue.get_nowait(), link.queue.get_nowait()
    assert (loud.seq, after.seq) == (2, 3)
    link.peers.settle(loud, recorded=True)
    assert line.acknowledged == [2], "at once, when it is on record"
    link.say(peer, 4)
    assert link.taken == [1], "one is still in the queue"
    link.peers.settle(after, recorded=False)
    link.peers.settle(link.queue.get_nowait(), recorded=False)
    link.say(peer, 5)
    assert link.taken == [1, 5]


@in_a_loop
async def test_a_full_queue_stops_the_peer_and_loses_nothing():
    link = Link(room=1)
    (first, _), (second, line) = link.joined("n0"), link.joined("n1")
    assert link.say(first, 1, loud=True)
    assert not link.say(second, 1, loud=True), "nothing more is read of it"
    link.peers.make_room()
    assert line.num_resumed == 0
    assert link.queue.get_nowait().source == "n0"
    link.peers.make_room()
    assert (link.queue.get_nowait().source, line.num_resumed) == ("n1", 1)


@in_a_loop
async def test_of_two_connections_of_one_peer_the_newer_one_is_it():
    link = Link()
    (old, line), (new, _) = link.joined(), link.joined()
    assert isinstance(line.sent[0], Welcome)
    assert line.sent[1] == "the same peer connected again"
    link.say(old, 1)
    assert link.taken == []
    link.peers.leave(old)
    assert link.peers.get("n0") is new
    link.peers.hear(new, bytearray(encode(Beat())), is_binary=True)
    link.peers.hear(new, bytearray(b"\xc1"), is_binary=True)
    link.peers.hear(new, bytearray(b""), is_binary=False)
    assert link.taken == []


@pytest.mark.parametrize("num_ready", [3, MOST_AT_ONCE + 40])
def test_a_turn_looks_after_so_many_sockets_and_leaves_none_out(num_ready):
    pairs = [socket.socketpair() for _ in range(num_ready)]
    try:
        with Selector() as selector:
            for ours, theirs in pairs:
                selector.register(ours, selectors.EVENT_READ)
                theirs.send(b"x")
            seen = set()
            for _ in range(2):
                ready = selector.select(5.0)
                assert 0 < len(ready) <= MOST_AT_ONCE or len(seen) == num_ready
                for key, mask in ready:
                    assert mask == selectors.EVENT_READ
                    seen.add(key.fd)
                    key.fileobj.recv(1)
                if len(seen) == num_ready:
                    break
            assert len(seen) == num_ready
            assert selector.select(0) == []
    finally:
        for pair in pairs:
            for sock in pair:
                sock.close()
