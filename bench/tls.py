"""What encryption costs: the certificate of a run, and snapshots between nodes if they were encrypted.

    python bench/tls.py

Over loopback, sender and receiver in two processes. `plain` is what the snapshot transport does (sendfile out of the
arena, no copy in the sender); `tls` sends the same memory through Python's ssl with TLS 1.3.
"""

import multiprocessing
import os
import socket
import ssl
import statistics
import tempfile
import time
from pathlib import Path

from everstep.controller.peers.listening import Certificate
from everstep.launcher.rundir.keys import Keys
from measuring.figures import table

PIECE_BYTES = 4 << 20
NUM_PIECES = 128
ROUNDS = 5


def receive(port: int, is_encrypted: bool, took: "multiprocessing.Queue[float]") -> None:
    with socket.create_connection(("127.0.0.1", port)) as raw:
        sock: socket.socket = raw
        if is_encrypted:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            sock = context.wrap_socket(raw)
        buffer, done, begun = memoryview(bytearray(PIECE_BYTES)), 0, time.perf_counter()
        while done < PIECE_BYTES * NUM_PIECES:
            done += sock.recv_into(buffer)
        took.put(time.perf_counter() - begun)


def transfer_gib_s(certificate: Certificate, is_encrypted: bool) -> float:
    took: multiprocessing.Queue[float] = multiprocessing.Queue()
    fd = os.memfd_create("snapshot")
    os.truncate(fd, PIECE_BYTES)
    data = memoryview(os.pread(fd, PIECE_BYTES, 0))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        args = (listener.getsockname()[1], is_encrypted, took)
        receiver = multiprocessing.Process(target=receive, args=args)
        receiver.start()
        raw, _ = listener.accept()
        sock: socket.socket = certificate.context().wrap_socket(raw, server_side=True) if is_encrypted else raw
        with sock:
            for _ in range(NUM_PIECES):
                if is_encrypted:
                    sock.sendall(data)
                else:
                    sent = 0
                    while sent < PIECE_BYTES:
                        sent += os.sendfile(sock.fileno(), fd, sent, PIECE_BYTES - sent)
            seconds = took.get(timeout=60)
        receiver.join()
    os.close(fd)
    return PIECE_BYTES * NUM_PIECES / seconds / 2**30


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        keys, certify_s = Keys(Path(folder), "r1"), []
        for _ in range(ROUNDS):
            begun = time.perf_counter()
            keys.certify()
            certify_s.append(time.perf_counter() - begun)
        certificate = Certificate.of_run(Path(folder))
        assert certificate is not None
        plain = [transfer_gib_s(certificate, False) for _ in range(ROUNDS)]
        tls = [transfer_gib_s(certificate, True) for _ in range(ROUNDS)]
    rows = [
        ["certificate", f"{1e3 * statistics.median(certify_s):.0f} ms"],
        ["snapshot, plain", f"{statistics.median(plain):.2f} GiB/s"],
        ["snapshot, tls", f"{statistics.median(tls):.2f} GiB/s"],
    ]
    print(table(["", f"median of {ROUNDS}"], rows))


if __name__ == "__main__":
    main()
