"""A node with snapshots, in a process that tests may stop and kill, or in the test's own.

python transport_node.py serve SIZE                      serves rank 0's step 7, and a shelf; prints its endpoint, and
                                                         "begun" when somebody pushes
python transport_node.py push ENDPOINT SIZE RATE STEP    prints "begun", pushes, prints how much was sent
"""

import asyncio
import functools
import hashlib
import os
import sys

from everstep.checkpoint import arena
from everstep.checkpoint.backups import Backups
from everstep.checkpoint.transport import Limiter, Pushed, Server, push

TOKEN, RUN = "a token of this test", "r1"
PATIENCE_S = 10.0
SHORT_S = 0.5  # where a peer is silent on purpose; elsewhere a busy machine must not look like one
SKELETON_BYTES = 64
WORLD_SIZE = 4
NUM_BUFFERS = 3


@functools.cache
def content(size: int, step: int) -> bytes:
    return hashlib.shake_128(f"{size} {step}".encode()).digest(size)


def new_arena(capacity_bytes: int, rank: int = 0) -> int:
    num_bytes = arena.arena_bytes(capacity_bytes, NUM_BUFFERS)
    return arena.create(num_bytes, rank=rank, world_size=WORLD_SIZE, num_buffers=NUM_BUFFERS)


def write(fd: int, step: int, data: bytes, generation: int = 0) -> arena.Snapshot:
    """As a rank does."""
    writer = arena.Arena(fd)
    buffer = writer.begin(step, generation)
    assert buffer is not None
    with writer.buffer(buffer) as view:
        view[: len(data)] = data
    writer.publish(len(data), SKELETON_BYTES, 1)
    writer.close()
    return next(s for s in arena.inspect(fd).snapshots if (s.step, s.generation) == (step, generation))


def read(fd: int, step: int) -> bytes:
    contents = arena.inspect(fd)
    (snapshot,) = [s for s in contents.snapshots if s.step == step]
    return os.pread(fd, snapshot.length, arena.offset_of(contents, snapshot.buffer))


class Node:
    """A server, a shelf and the arenas of its own ranks."""

    def __init__(self, **given: object) -> None:
        self.own: dict[int, int] = {}
        self.shelf = Backups(lambda: 1 << 30)
        self.server = Server(TOKEN, self.shelf, self.own.items, run=RUN, **{"patience_s": PATIENCE_S, **given})
        self.endpoint = ""

    async def __aenter__(self) -> "Node":
        self.endpoint = await self.server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.server.close()
        self.shelf.close()
        for fd in self.own.values():
            os.close(fd)

    def copy_of(self, rank: int, step: int) -> bytes:
        fds = self.shelf.duplicates(rank)
        try:
            return read(next(fd for fd in fds if step in dict(arena.held(fd))), step)
        finally:
            for fd in fds:
                os.close(fd)


async def send(endpoint: str, fd: int, snapshot: arena.Snapshot, *, rate: float = 0.0, **given: object) -> Pushed:
    call = {"rank": 0, "world_size": WORLD_SIZE, "run": RUN, "patience_s": PATIENCE_S, "token": TOKEN, **given}
    return await push(endpoint, fd=fd, snapshot=snapshot, limiter=Limiter(rate), **call)


class BadLine:
    """A line to a server that ends after so many bytes, or flips a bit; `up` is towards the server."""

    def __init__(self, endpoint: str, *, up: int = 1 << 60, down: int = 1 << 60, flip_up: tuple[int, ...] = ()) -> None:
        self._to = int(endpoint.rpartition(":")[2])
        self._left = {"up": up, "down": down}
        self._flips = list(flip_up)
        self.passed = {"up": 0, "down": 0}
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> "BadLine":
        self._server = await asyncio.start_server(self._join, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await self._server.wait_closed()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _join(self, near: asyncio.StreamReader, near_out: asyncio.StreamWriter) -> None:
        far, far_out = await asyncio.open_connection("127.0.0.1", self._to)
        ways = [
            asyncio.create_task(self._carry("up", near, far_out)),
            asyncio.create_task(self._carry("down", far, near_out)),
        ]
        self._tasks.update(ways)
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
        for out in (near_out, far_out):
            out.close()
            await asyncio.gather(out.wait_closed(), return_exceptions=True)

    async def _carry(self, way: str, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        while self._left[way] > 0 and (data := bytearray(await source.read(min(1 << 16, self._left[way])))):
            for flip in [f for f in self._flips if way == "up" and 0 <= f - self.passed[way] < len(data)]:
                data[flip - self.passed[way]] ^= 4
                self._flips.remove(flip)
            target.write(data)
            await target.drain()
            self._left[way] -= len(data)
            self.passed[way] += len(data)


async def serve(size: int) -> None:
    async with Node() as node:
        node.own[0] = new_arena(size)
        write(node.own[0], 7, content(size, 7))
        print(node.endpoint, flush=True)
        telling = asyncio.create_task(tell_of_push(node.shelf))
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
        telling.cancel()


async def tell_of_push(shelf: Backups) -> None:
    while not shelf._transfers:
        await asyncio.sleep(0.005)
    print("begun", flush=True)


async def push_one(endpoint: str, size: int, rate: float, step: int) -> None:
    fd = new_arena(size)
    snapshot = write(fd, step, content(size, step))
    print("begun", flush=True)
    pushed = await send(endpoint, fd, snapshot, rate=rate, patience_s=10.0)
    print(pushed.bytes_sent, flush=True)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["serve", size]:
            asyncio.run(serve(int(size)))
        case ["push", endpoint, size, rate, step]:
            asyncio.run(push_one(endpoint, int(size), float(rate), int(step)))
