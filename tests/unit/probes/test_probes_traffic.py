"""Bytes of real sockets as the kernel counts them; what cannot be counted is unknown."""

import os
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.probes.rank import traffic
from everstep.probes.rank.infiniband import port_bytes
from everstep.probes.rank.traffic import LIVE_BYTES_S, TrafficError, TrafficProbe, bytes_of, grown, interface_bytes

NUM_BYTES = 300_000


@pytest.fixture
def pair():
    with socket.create_server(("127.0.0.1", 0)) as server:
        with socket.create_connection(server.getsockname()) as near:
            far, _ = server.accept()
            with far:
                yield near, far


def transfer(near: socket.socket, far: socket.socket, num_bytes: int = NUM_BYTES) -> None:
    sent = got = 0
    while got < num_bytes:
        if sent < num_bytes:
            sent += near.send(bytes(min(1 << 14, num_bytes - sent)))
        got += len(far.recv(1 << 16))


def until(condition, limit_s: float = 60.0):
    deadline = time.monotonic() + limit_s
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return found


def test_both_ends_of_a_connection_are_counted(pair):
    near, far = pair
    before = bytes_of([os.getpid()])[os.getpid()]
    transfer(near, far)
    inodes = [os.fstat(end.fileno()).st_ino for end in pair]

    def counted() -> bool:
        after = bytes_of([os.getpid()])[os.getpid()]
        return all(after[inode] - before[inode] == NUM_BYTES for inode in inodes)

    until(counted)  # the last acknowledgement may come a little later


def test_only_a_processs_own_sockets_count(pair):
    transfer(*pair)
    child = subprocess.Popen([sys.executable, "-c", "print(1, flush=True); input()"], stdin=-1, stdout=-1)
    with child:
        assert child.stdout.readline() == b"1\n"
        assert bytes_of([child.pid]) == {child.pid: {}}, "it has no sockets: that is known, and no bytes"
        child.kill()
    assert bytes_of([child.pid]) == {}, "it is gone: nothing is known"


@pytest.mark.skipif(not Path("/proc/net/if_inet6").exists(), reason="no IPv6")
def test_a_server_that_listens_and_ipv6_do_no_harm():
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as server:
        with socket.create_connection(server.getsockname()[:2]) as near:
            near.sendall(b"x" * 1000)
            inode = os.fstat(near.fileno()).st_ino
            counted = until(
                lambda: (
                    bytes_of([os.getpid()])[os.getpid()].get(inode, 0) >= 1000
                    and bytes_of([os.getpid()])[os.getpid()][inode]
                )
            )
            assert 1000 <= counted <= 1001, "the handshake may count as one"


def test_what_may_not_be_looked_at_is_an_error_with_its_reason(monkeypatch):
    def denied(_folder: str) -> list[str]:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patched:
        patched.setattr(traffic.os, "listdir", denied)
        with pytest.raises(TrafficError, match="Permission denied"):
            bytes_of([os.getpid()])
    with monkeypatch.context() as patched:
        patched.setattr(traffic, "_namespace", lambda pid: f"net:[{pid}]")
        with pytest.raises(TrafficError, match="another network namespace"):
            bytes_of([os.getpid()])
    with monkeypatch.context() as patched:
        patched.setattr(traffic, "_SOCK_DIAG_BY_FAMILY", 21)  # SOCK_DESTROY: not for us, or not without a socket
        with pytest.raises(TrafficError, match="sock_diag"):
            bytes_of([os.getpid()])


def test_grown():
    assert grown({1: 10}, {1: 30, 2: 5}) == 25
    assert grown({1: 10, 3: 7}, {1: 4}) == 0, "one was closed, the other's number belongs to a new socket"


def test_a_transfer_is_a_sign_of_life_and_a_heartbeat_is_none():
    probe = TrafficProbe()
    probe.take({1: 0}, 10.0)
    assert probe.look(10.0) is None, "one look tells no rate"
    probe.take({1: 900}, 11.0)
    assert probe.look(11.0) is None
    probe.take({1: 900 + LIVE_BYTES_S}, 12.0)
    assert probe.look(12.5) == 0.5
    probe.take({1: 901 + LIVE_BYTES_S}, 13.0)
    assert probe.look(13.0) == 1.0, "nothing since"
    probe.take(None, 14.0)
    assert probe.look(14.0) is None, "they cannot be counted any more"
    probe.take({1: 5}, 15.0)
    probe.take({1: 5 + LIVE_BYTES_S}, 15.0)
    assert probe.look(15.0) is None, "no time has passed"


def test_interfaces(tmp_path):
    assert "lo" not in interface_bytes()
    with pytest.raises(TrafficError, match="interfaces"):
        interface_bytes(tmp_path)
    (tmp_path / "proc/net").mkdir(parents=True)
    file = tmp_path / "proc/net/dev"
    lo, eth = "lo: 5 0 0 0 0 0 0 0 5 0 0 0 0 0 0 0", "eth0:100 1 0 0 0 0 0 0 11 2 0 0 0 0 0 0"
    file.write_text(f"Inter-|\n face |\n    {lo}\n  {eth}\n")
    assert interface_bytes(tmp_path) == {"eth0": 111}
    file.write_text("Inter-|\n face |\n eth0: what\n")
    with pytest.raises(TrafficError):
        interface_bytes(tmp_path)


def test_infiniband_ports(tmp_path):
    assert port_bytes(tmp_path) == {}
    for port, values in (("1", ("10", "5")), ("2", ("x", "5"))):
        folder = tmp_path / f"sys/class/infiniband/mlx5_0/ports/{port}/counters"
        folder.mkdir(parents=True)
        for name, value in zip(("port_xmit_data", "port_rcv_data"), values, strict=True):
            (folder / name).write_text(value + "\n")
    assert port_bytes(tmp_path) == {"mlx5_0/1": 60}, "words of four bytes; a port that cannot be read is left out"


@given(st.lists(st.binary(max_size=400), max_size=4))
def test_an_answer_that_is_garbage_is_an_error_and_no_figure(answers):
    class Link:
        def __init__(self) -> None:
            self.answers = list(answers)

        def send(self, _data: bytes) -> None: ...

        def recv(self, _size: int) -> bytes:
            if not self.answers:
                raise TimeoutError("no more")
            return self.answers.pop(0)

    try:
        found = dict(traffic._dump(Link(), 2, float("inf")))
    except (TrafficError, OSError, struct.error):
        return
    assert found == {} or all(value >= 0 for value in found.values())
