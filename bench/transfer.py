"""Snapshots between nodes against a plain copy of the same bytes over the same link, taking turns.

    python bench/transfer.py [--megabytes 64 512] [--rounds 7] [--veth] [--json]

The other side is a process of its own: over loopback, or with --veth (needs root) in a network namespace behind a
pair of virtual interfaces. Each round does all of these, in changing order:

    plain    os.sendfile from shared memory; received into a small buffer and written to shared memory. No checksum, no
             protocol: the fastest plain copy that was found
    mapped   the same, received into mapped shared memory
    push     everstep.checkpoint.transport.push: a new snapshot of which the other side has no piece
    fetch    everstep.checkpoint.transport.fetch of one that the other side holds
    push tls, fetch tls    the same encrypted, as between hosts

Memory is made before the clock starts on all sides; what it takes is a column of its own, as a node that takes over a
slot pays for it too. The ratio is of medians; 70 % is asked for.
"""

import argparse
import asyncio
import contextlib
import json
import mmap
import os
import random
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

from everstep.checkpoint import arena
from everstep.checkpoint.backups import Backups
from everstep.checkpoint.transport import Limiter, Server, Tls, fetch, push
from everstep.launcher.rundir.keys import Keys
from everstep.wire.credentials import CERTIFICATE_NAME, KEY_NAME
from measuring.figures import quantile, table

TOKEN, RUN = "only for this benchmark", "bench"
PIECE_BYTES = 1 << 20
NUM_BUFFERS = 3
FETCHED_STEP = 1_000_000  # not one that is pushed: of that the other side would say that it has a replica
KINDS = ("plain", "mapped", "push", "fetch", "push tls", "fetch tls")
_HEAD = struct.Struct("<QQ")  # bytes, 1 if into mapped memory


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, nargs="+", default=[64, 512])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--veth", action="store_true", help="between two network namespaces; needs root")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--peer", help=argparse.SUPPRESS)  # the other side: the address that it listens on
    given = parser.parse_args()
    if given.peer:
        asyncio.run(be_peer(given.peer))
        return
    with other_side(given.veth) as (peer, host):
        measured = [measure(peer, host, megabytes << 20, given.rounds) for megabytes in given.megabytes]
    if given.json:
        print(json.dumps({"link": "veth" if given.veth else "loopback", "sizes": measured}))
        return
    print(f"{'a veth pair' if given.veth else 'loopback'}, {given.rounds} rounds, medians (least to most)")
    for size in measured:
        print(f"\n{size['megabytes']} MiB; its memory takes {size['memory_s']:.2f} s to make")
        print(table(("", "GB/s", "least", "most", "of plain"), [row(kind, size) for kind in KINDS]))


def row(kind: str, size: dict[str, dict[str, list[float]]]) -> tuple[str, ...]:
    rates = size["gb_s"]
    median = statistics.median(rates[kind])
    share = median / statistics.median(rates["plain"])
    return kind, f"{median:.2f}", f"{min(rates[kind]):.2f}", f"{quantile(rates[kind], 1):.2f}", f"{share:.0%}"


def measure(peer: subprocess.Popen[str], host: str, size: int, rounds: int) -> dict[str, object]:
    """GB/s of each kind, round by round."""
    certificate, key = new_certificate()
    tls = Tls(certificate, key)
    told = ask(peer, {"hold": size, "certificate": certificate, "key": key})
    fd = new_arena(size)
    begun = time.perf_counter()
    os.close(new_arena(size))
    memory_s = time.perf_counter() - begun
    endpoint, encrypted = str(told["endpoint"]), str(told["encrypted"])
    steps = count()
    acts: dict[str, Callable[[], float]] = {
        "plain": lambda: plain(fd, (host, int(told["port"])), size, 0),
        "mapped": lambda: plain(fd, (host, int(told["port"])), size, 1),
        "push": lambda: asyncio.run(pushed(fd, endpoint, size, next(steps))),
        "fetch": lambda: asyncio.run(fetched(endpoint, size)),
        "push tls": lambda: asyncio.run(pushed(fd, encrypted, size, next(steps), tls)),
        "fetch tls": lambda: asyncio.run(fetched(encrypted, size, tls)),
    }
    rates: dict[str, list[float]] = {kind: [] for kind in KINDS}
    draw = random.Random(size)
    for turn in range(rounds + 1):
        for kind in draw.sample(KINDS, len(KINDS)):
            took_s = acts[kind]()
            if turn:  # the first one makes the other side's memory, and is not counted
                rates[kind].append(size / took_s / 1e9)
    os.close(fd)
    return {"megabytes": size >> 20, "memory_s": memory_s, "gb_s": rates}


def plain(fd: int, address: tuple[str, int], size: int, is_mapped: int) -> float:
    with socket.create_connection(address) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.sendall(_HEAD.pack(size, is_mapped))
        sock.recv(1)  # its memory is ready
        began = time.perf_counter()
        offset, end = arena.PAGE_BYTES, arena.PAGE_BYTES + size
        while offset < end:
            offset += os.sendfile(sock.fileno(), fd, offset, end - offset)
        assert sock.recv(1) == b"!"
        return time.perf_counter() - began


async def pushed(fd: int, endpoint: str, size: int, step: int, tls: Tls | None = None) -> float:
    snapshot = write(fd, size, step=step)
    began = time.perf_counter()
    done = await push(
        endpoint,
        TOKEN,
        run=RUN,
        rank=0,
        world_size=2,
        fd=fd,
        snapshot=snapshot,
        limiter=Limiter(),
        patience_s=60,
        tls=tls,
    )
    assert done.bytes_sent == size
    return time.perf_counter() - began


async def fetched(endpoint: str, size: int, tls: Tls | None = None) -> float:
    made = new_arena(size, rank=1)
    began = time.perf_counter()
    fd = await fetch(
        endpoint, TOKEN, run=RUN, rank=1, step=FETCHED_STEP, make_arena=lambda _: made, patience_s=60, tls=tls
    )
    took_s = time.perf_counter() - began
    assert arena.held_steps(fd) == (FETCHED_STEP,)
    os.close(fd)
    return took_s


def new_certificate() -> tuple[str, str]:
    """Both PEM."""
    with tempfile.TemporaryDirectory() as folder:
        keys = Keys(Path(folder), RUN)
        keys.certify()
        return (Path(folder) / CERTIFICATE_NAME).read_text(), (Path(folder) / KEY_NAME).read_text()


def new_arena(size: int, rank: int = 0) -> int:
    num_bytes = arena.arena_bytes(size, NUM_BUFFERS)
    return arena.create(num_bytes, rank=rank, world_size=2, num_buffers=NUM_BUFFERS)


def write(fd: int, size: int, step: int) -> arena.Snapshot:
    """A sealed snapshot, as ranks make them, no piece of which was ever sent."""
    writer = arena.Arena(fd)
    buffer = writer.begin(step, 0)
    assert buffer is not None
    with writer.buffer(buffer) as view:
        piece = random.Random(step).randbytes(PIECE_BYTES)
        for index, start in enumerate(range(0, size, PIECE_BYTES)):
            end = min(start + PIECE_BYTES, size)
            view[start:end] = piece[: end - start]
            view[start : start + 16] = struct.pack("<QQ", step, index)
    writer.seal(writer.publish(size, 16, 0))
    writer.close()
    return arena.inspect(fd).snapshots[-1]


# The other side.


@contextlib.contextmanager
def other_side(is_veth: bool) -> Iterator[tuple[subprocess.Popen[str], str]]:
    command = [sys.executable, str(Path(__file__).resolve()), "--peer"]
    with contextlib.ExitStack() as opened:
        host = "127.0.0.1"
        if is_veth:
            host, prefix = opened.enter_context(namespace())
            command = [*prefix, *command]
        peer = subprocess.Popen([*command, host], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        opened.enter_context(peer)
        opened.callback(peer.kill)
        yield peer, host


@contextlib.contextmanager
def namespace() -> Iterator[tuple[str, list[str]]]:
    """A network namespace with one end of a veth pair: (its address, how to run a program there)."""
    name = f"esbench{os.getpid() % 100000}"
    near, far = f"{name}a"[-15:], f"{name}b"[-15:]
    ip("netns", "add", name)
    try:
        ip("link", "add", near, "type", "veth", "peer", "name", far, "netns", name)
        ip("addr", "add", "10.213.7.1/30", "dev", near)
        ip("link", "set", near, "up")
        ip("-n", name, "addr", "add", "10.213.7.2/30", "dev", far)
        ip("-n", name, "link", "set", far, "up")
        yield "10.213.7.2", ["ip", "netns", "exec", name]
    finally:
        ip("netns", "del", name)  # and with it the pair


def ip(*args: str) -> None:
    subprocess.run(["ip", *args], check=True, timeout=20)


def ask(peer: subprocess.Popen[str], what: dict[str, object]) -> dict[str, object]:
    assert peer.stdin is not None
    assert peer.stdout is not None
    peer.stdin.write(json.dumps(what) + "\n")
    peer.stdin.flush()
    told: dict[str, object] = json.loads(peer.stdout.readline())
    return told


async def be_peer(host: str) -> None:
    """Serves what it is told to hold, one size after the other, until its input ends."""
    loop = asyncio.get_running_loop()
    listener = socket.create_server((host, 0))
    loop.run_in_executor(None, take_plain, listener)
    own: dict[int, int] = {}
    servers: list[Server] = []
    shelf = None
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        told = json.loads(line)
        size, tls = told["hold"], Tls(told["certificate"], told["key"])
        if shelf is not None:
            await asyncio.gather(*(server.close() for server in servers))
            shelf.close()
            os.close(own[1])
        own[1] = new_arena(size, rank=1)
        write(own[1], size, step=FETCHED_STEP)
        shelf = Backups(lambda: 8 << 30, num_buffers=NUM_BUFFERS)
        servers = [
            Server(TOKEN, shelf, own.items, run=RUN, host=host, beyond_loopback=True, patience_s=60, tls=each)
            for each in (None, tls)
        ]
        endpoint, encrypted = [await server.start() for server in servers]
        port = listener.getsockname()[1]
        print(json.dumps({"endpoint": endpoint, "encrypted": encrypted, "port": port}), flush=True)
    os._exit(0)  # the listener's thread waits for ever


def take_plain(listener: socket.socket) -> None:
    while True:
        sock, _ = listener.accept()
        with sock:
            size, is_mapped = _HEAD.unpack(sock.recv(_HEAD.size, socket.MSG_WAITALL))
            fd = os.memfd_create("plain")
            os.posix_fallocate(fd, 0, size)
            sock.sendall(b"?")
            (into_mapped if is_mapped else into_file)(sock, fd, size)
            sock.sendall(b"!")
            os.close(fd)


def into_file(sock: socket.socket, fd: int, size: int) -> None:
    piece = memoryview(bytearray(PIECE_BYTES))
    done = 0
    while done < size:
        num_bytes = sock.recv_into(piece[: size - done], 0, socket.MSG_WAITALL)
        done += os.pwrite(fd, piece[:num_bytes], done)


def into_mapped(sock: socket.socket, fd: int, size: int) -> None:
    with mmap.mmap(fd, size) as memory, memoryview(memory) as view:
        done = 0
        while done < size:
            done += sock.recv_into(view[done : done + PIECE_BYTES], 0, socket.MSG_WAITALL)


if __name__ == "__main__":
    main()
