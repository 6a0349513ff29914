"""For how long data was on its way, by the kernel's clock of real connections."""

import os
import select
import socket
import threading
import time

from everstep.probes.rank.sending import Sending
from everstep.probes.rank.traffic import Connection, connections


def ANY(connection: Connection) -> bool:
    """A connection within this machine too: there is no other one here."""
    return True


def _connected() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        return near, server.accept()[0]


def test_a_connection_tells_its_peer_and_its_clock():
    near, far = _connected()
    with near, far:
        near.sendall(b"x" * 1000)
        found = connections()[os.fstat(near.fileno()).st_ino]
        assert found.peer == "127.0.0.1"
        assert found.busy_s is not None


def test_a_reader_that_reads_nothing_is_no_slow_link():
    """The data arrives; there is no room for it. That is the other rank's doing."""
    near, far = _connected()
    with near, far:
        sending = Sending(counts=ANY)
        began = time.monotonic()
        assert sending.look([os.getpid()], began) == {}, "nothing is known of the first time"
        near.setblocking(False)
        for _ in range(200):
            try:
                near.send(bytes(1 << 16))
            except BlockingIOError:
                break
        time.sleep(1.0)
        sent = sending.look([os.getpid()], time.monotonic())[os.getpid()]
        assert sent.busy_s < 0.5 * (time.monotonic() - began)
        assert sent.unread.endswith("there was no room for its data at 127.0.0.1: what came there is not read")
        while select.select([far], [], [], 0.5)[0]:
            far.recv(1 << 20)
        sending.look([os.getpid()], time.monotonic())
        near.send(b"x")
        time.sleep(0.3)
        assert sending.look([os.getpid()], time.monotonic())[os.getpid()].unread == "", "it reads again"


def test_bytes_and_peer_are_told_of_the_busiest():
    near, far = _connected()
    with near, far:
        sending = Sending(counts=ANY)
        sending.look([os.getpid()], time.monotonic())
        reader = threading.Thread(target=lambda: all(iter(lambda: far.recv(1 << 16), b"")), daemon=True)
        reader.start()
        for _ in range(100):
            near.sendall(bytes(1 << 14))
            time.sleep(0.001)
        sent = sending.look([os.getpid()], time.monotonic())[os.getpid()]
        near.shutdown(socket.SHUT_WR)
        reader.join(10.0)
        assert "to 127.0.0.1" in sent.says
        assert sending.look([1 << 22], time.monotonic()) == {}, "a process that is gone"


def test_within_a_machine_there_is_no_link():
    near, far = _connected()
    with near, far:
        sending = Sending()
        sending.look([os.getpid()], time.monotonic())
        near.sendall(b"x" * 1000)
        assert connections()[os.fstat(near.fileno()).st_ino].is_local
        assert sending.look([os.getpid()], time.monotonic()) == {}


def test_what_the_receiver_keeps_back_is_not_the_links():
    """Its kernel confirms a message 40 ms later when nothing answers it: a rank that is late, on any link."""
    near, far = _connected()
    with near, far:
        for end in (near, far):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sending = Sending(counts=ANY)
        for number in range(24):
            if number == 12:  # at first it confirms everything at once
                before = connections()[os.fstat(near.fileno()).st_ino]
                sending.look([os.getpid()], time.monotonic())
            # Its kernel would confirm everything at once after each pause of an RTO, which a busy machine makes.
            far.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 0)
            near.sendall(b"x" * 256)
            time.sleep(0.08)
            far.sendall(far.recv(256))
            near.recv(256)
        sent = sending.look([os.getpid()], time.monotonic())[os.getpid()]
        after = connections()[os.fstat(near.fileno()).st_ino]
    assert before.busy_s is not None
    assert after.busy_s is not None
    assert after.busy_s - before.busy_s > 12 * 0.01, "the clock of the kernel ran"
    assert sent.busy_s < 12 * 0.005, sent
