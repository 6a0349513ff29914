"""What encryption costs: the certificate of a run, and bytes from memory to memory through TLS beside plain ones.

    python bench/tls.py

Over loopback, sender and receiver in two processes that take turns with the kinds. `plain` is what the snapshot
transport does (sendfile out of the arena, no copy in the sender); `tls` sends the same memory through Python's ssl with
TLS 1.3, as between hosts. CPU seconds hardly depend on what else the machine does; one divided by them is what one
core can do. The transport itself, plain and encrypted: `bench/transfer.py`.
"""

import multiprocessing
import os
import socket
import ssl
import statistics
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from everstep.controller.peers.listening import Certificate
from everstep.launcher.rundir.keys import Keys
from measuring.figures import table

PIECE_BYTES = 4 << 20
BLOCK_BYTES = 256 << 10
NUM_PIECES = 128
ROUNDS = 5


class Took(NamedTuple):
    """Per GiB."""

    sender_cpu_s: float
    receiver_cpu_s: float
    wall_s: float


def receive(port: int, is_encrypted: bool, took: "multiprocessing.Queue[float]") -> None:
    with socket.create_connection(("127.0.0.1", port)) as raw:
        sock: socket.socket = raw
        if is_encrypted:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            sock = context.wrap_socket(raw)
        buffer, done, begun = memoryview(bytearray(PIECE_BYTES)), 0, time.process_time()
        while done < PIECE_BYTES * NUM_PIECES:
            done += sock.recv_into(buffer) if is_encrypted else sock.recv_into(buffer, 0, socket.MSG_WAITALL)
        took.put(time.process_time() - begun)


def transfer(certificate: Certificate, is_encrypted: bool) -> Took:
    took: multiprocessing.Queue[float] = multiprocessing.Queue()
    fd = os.memfd_create("snapshot")
    os.write(fd, os.urandom(PIECE_BYTES))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        args = (listener.getsockname()[1], is_encrypted, took)
        receiver = multiprocessing.Process(target=receive, args=args)
        receiver.start()
        raw, _ = listener.accept()
        sock: socket.socket = certificate.context().wrap_socket(raw, server_side=True) if is_encrypted else raw
        with sock:
            begun, cpu_begun = time.perf_counter(), time.process_time()
            for _ in range(NUM_PIECES):
                send_piece(sock, fd, is_encrypted)
            sender_cpu_s = time.process_time() - cpu_begun
            receiver_cpu_s = took.get(timeout=60)
            wall_s = time.perf_counter() - begun
        receiver.join()
    os.close(fd)
    num_gib = PIECE_BYTES * NUM_PIECES / 2**30
    return Took(sender_cpu_s / num_gib, receiver_cpu_s / num_gib, wall_s / num_gib)


def send_piece(sock: socket.socket, fd: int, is_encrypted: bool) -> None:
    sent = 0
    while sent < PIECE_BYTES:
        if is_encrypted:
            sock.sendall(block := os.pread(fd, BLOCK_BYTES, sent))
            sent += len(block)
        else:
            sent += os.sendfile(sock.fileno(), fd, sent, PIECE_BYTES - sent)


def main() -> None:
    kinds: dict[str, list[Took]] = {"plain": [], "tls": []}
    with tempfile.TemporaryDirectory() as folder:
        keys, certify_s = Keys(Path(folder), "r1"), []
        for _ in range(ROUNDS):
            begun = time.perf_counter()
            keys.certify()
            certify_s.append(time.perf_counter() - begun)
        certificate = Certificate.of_run(Path(folder))
        assert certificate is not None
        for _ in range(ROUNDS):
            for kind, took in kinds.items():
                took.append(transfer(certificate, kind == "tls"))
    print(f"certificate {1e3 * statistics.median(certify_s):.0f} ms; load {os.getloadavg()[0]:.0f}")
    rows = []
    for kind, took in kinds.items():
        sender, receiver, wall = (statistics.median(each) for each in zip(*took, strict=True))
        rows.append([kind, f"{sender:.2f}", f"{receiver:.2f}", f"{1 / max(sender, receiver):.2f}", f"{1 / wall:.2f}"])
    print(table(["", "CPU s per GiB sent", "received", "GiB/s of one core", f"GiB/s, median of {ROUNDS}"], rows))


if __name__ == "__main__":
    main()
