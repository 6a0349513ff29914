"""`everstep check --serve` among strangers: whoever has the token is served."""

import contextlib
import socket
import threading
import time

import pytest

from everstep.preflight import peer
from everstep.wire.strangers.owner import Owners


@pytest.fixture
def port():
    listener = peer.listen("127.0.0.1", 0)

    def run():
        try:
            peer.serve(listener, "right")
        except OSError:
            pass  # closed by the test

    threading.Thread(target=run, daemon=True).start()
    yield listener.getsockname()[1]
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()


def ask(port, token):
    """What a client of its own does, as `checks.network`."""
    with socket.create_connection(("127.0.0.1", port), 30.0) as sock:
        nonce = peer.read_line(sock).split()[-1]
        sock.sendall(f"{peer.proof(token, nonce)} echo 1\n".encode())
        told = peer.read_line(sock)
        if told == b"ok":
            sock.sendall(b"x" * peer.MESSAGE_BYTES)
            assert peer.read_exactly(sock, peer.MESSAGE_BYTES) == b"x" * peer.MESSAGE_BYTES
        return told


@pytest.mark.parametrize("number", [8, 200])
def test_a_crowd_that_says_nothing_keeps_nobody_out(port, number, monkeypatch):
    monkeypatch.setattr(peer, "_PROOF_S", 300.0)  # none of them is cut for its silence
    before = threading.active_count()
    crowd = [socket.create_connection(("127.0.0.1", port)) for _ in range(number)]
    assert ask(port, "right") == b"ok"
    assert ask(port, "wrong") == b"no: wrong token"
    while threading.active_count() - before > peer._MAX_WAITING + 1:  # or each of a crowd has a thread
        time.sleep(0.01)
    for sock in crowd:
        sock.close()


def test_a_crowd_that_comes_again_and_again_takes_no_place_of_another(port, monkeypatch):
    """It is not the oldest of all that goes, but the oldest of this user."""
    monkeypatch.setattr(Owners, "uid", lambda _self, peer, _here: int(peer[0].rpartition(".")[2]))
    with socket.create_connection(("127.0.0.1", port), 30.0) as sock, contextlib.ExitStack() as opened:
        nonce = peer.read_line(sock).split()[-1]
        for _ in range(3 * peer._MAX_WAITING):
            stranger = opened.enter_context(socket.create_connection(("127.0.0.1", port), 30.0, ("127.0.0.2", 0)))
        with contextlib.suppress(OSError, ValueError):
            peer.read_line(stranger)  # all of them have been taken
        sock.sendall(f"{peer.proof('right', nonce)} echo 0\n".encode())
        assert peer.read_line(sock) == b"ok"


def dribble(sock):
    """A byte now and then, until the other side has had enough; how many it took."""
    sock.settimeout(0.1)
    for number in range(1000):
        try:
            sock.sendall(b"x")
            if not sock.recv(1):
                return number
        except TimeoutError:
            continue
        except OSError:
            return number
    return 1000


def test_a_byte_now_and_then_does_not_hold_a_connection(port, monkeypatch):
    monkeypatch.setattr(peer, "_PROOF_S", 0.5)
    with socket.create_connection(("127.0.0.1", port), 30.0) as sock:
        peer.read_line(sock)
        assert dribble(sock) < 50  # and not a whole line of 256, which had 43 minutes


def test_a_deadline_is_for_the_whole_line():
    one, other = socket.socketpair()
    with one, other:
        other.sendall(b"abc\n")
        assert peer.read_line(one, time.monotonic() + 30.0) == b"abc"
        other.sendall(b"abc")
        with pytest.raises(TimeoutError):
            peer.read_line(one, time.monotonic() + 0.05)
