"""For how long data was on its way, over a link of its own: between two hosts, by the kernel's clock."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from everstep.engines.network import NetworkError
from everstep.testing.hosts import Bed, Host

PORT = 29500
RECEIVER = """
import socket, sys, time
size, late_s, count = int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
with socket.create_server(("0.0.0.0", int(sys.argv[1]))) as server:
    peer = server.accept()[0]
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for _ in range(count):
        peer.recv(1, socket.MSG_PEEK)
        time.sleep(late_s)
        left = size
        while left:
            left -= len(peer.recv(left))
        peer.sendall(b"x" * 8)
"""
SENDER = """
import json, os, socket, sys, time
from everstep.probes.rank.sending import Sending
address, port, size, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[4]), int(sys.argv[6])
for _ in range(400):
    try:
        peer = socket.create_connection((address, port))
        break
    except OSError:
        time.sleep(0.05)
peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
sending = Sending()
for number in range(count):
    if number == count // 2:  # at first the kernel confirms everything at once
        began = time.time()
        sending.look([os.getpid()], began)
    peer.sendall(bytes(size))
    got = 0
    while got < 8:
        got += len(peer.recv(8))
sent = sending.look([os.getpid()], time.time())[os.getpid()]
print(json.dumps({"share": sent.busy_s / (time.time() - began), "says": sent.says}))
"""


def share(sender: Host, receiver: Host, folder: Path, size: int, late_s: float, count: int) -> float:
    """Of the time in which messages of `size` bytes go to a receiver that looks at each so much later."""
    words = [str(PORT), str(size), str(late_s), str(count)]
    receiver.start([sys.executable, "-c", RECEIVER, *words])
    out = folder / "out"
    with out.open("wb") as file:
        process = sender.start([sys.executable, "-c", SENDER, receiver.address, *words[:1], *words], out=file)
        assert process.wait(60) == 0
    said = json.loads(out.read_text())
    print(said, file=sys.stderr)
    return float(said["share"])


@pytest.mark.parametrize(
    ("size", "late_s", "bytes_per_s"), [(256, 0.1, None), (4000, 0.06, None), (50_000, 0.0, 1_000_000)]
)
def test_a_slow_link_shows_and_a_late_receiver_does_not(
    tmp_path: Path, only_namespaces: None, size: int, late_s: float, bytes_per_s: int | None
):
    try:
        bed = Bed()
    except NetworkError as error:
        pytest.skip(str(error))
    with bed:
        sender, receiver = bed.add("sender"), bed.add("receiver")
        if bytes_per_s is not None:
            try:
                sender.throttle(bytes_per_s)
            except (OSError, subprocess.CalledProcessError) as error:
                pytest.skip(f"no link can be made slow here: {error}")
        found = share(sender, receiver, tmp_path, size, late_s, 40)
    assert found > 0.5 if bytes_per_s else found < 0.1, found
