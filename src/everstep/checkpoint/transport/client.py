"""Push a snapshot to another node, fetch one from there. Called in the agent's event loop; the work is done in a
thread.

Both may be cancelled at any await, and leave nothing behind: no thread, no descriptor, nothing half published.
"""

import asyncio
import contextlib
import functools
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator

from everstep.checkpoint import arena
from everstep.checkpoint.transport import frames
from everstep.checkpoint.transport.handshake import HandshakeError, Secret, introduce
from everstep.checkpoint.transport.incoming import Incoming, Known
from everstep.checkpoint.transport.outcome import Pushed, Refusal, TransferError
from everstep.checkpoint.transport.outgoing import Outgoing
from everstep.checkpoint.transport.pacing import Limiter
from everstep.checkpoint.transport.stream import Stream, StreamError
from everstep.checkpoint.transport.threads import in_thread
from everstep.checkpoint.transport.tls import Tls

PATIENCE_S = 10.0
"""Without a byte of progress. A peer under load pauses for a second or two; one that is stopped holds up a restart
that waits for this, so not much longer."""

CONNECT_S = 5.0  # a lost first packet is sent again after 1 s and 3 s
_NUM_ATTEMPTS = 3  # of a fetch, each going on where the one before was cut
_PAUSE_S = 0.1


async def push(
    endpoint: str,
    token: str,
    *,
    rank: int,
    world_size: int,
    fd: int,
    snapshot: arena.Snapshot,
    limiter: Limiter,
    run: str = "",
    patience_s: float = PATIENCE_S,
    tls: Tls | None = None,
) -> Pushed:
    """Send one complete snapshot of the arena `fd`, which the caller has pinned; returns when it is published there.
    A push of the same snapshot after one that broke off sends what is missing. Raises TransferError."""
    with _as_sentence(f"the snapshot of rank {rank} at step {snapshot.step} could not be sent to {endpoint}"):
        secret = Secret(token, run)
        ours = os.dup(fd)
        try:
            outgoing = Outgoing(ours, rank, snapshot)
            if outgoing.offer.world_size != world_size:
                raise Refusal(f"it is one of {outgoing.offer.world_size} ranks, not {world_size}")
            stream = await _connect(endpoint, patience_s, tls)
        except BaseException:
            os.close(ours)
            raise

        def work() -> Pushed:
            introduce(stream, secret, endpoint)
            return _push(stream, outgoing, limiter)

        def release() -> None:
            stream.close()
            os.close(ours)

        return await in_thread(work, stream.abort, f"push-rank-{rank}", release=release)


async def drop(
    endpoint: str,
    token: str,
    *,
    rank: int,
    generation: int,
    run: str = "",
    patience_s: float = PATIENCE_S,
    tls: Tls | None = None,
) -> None:
    """Report to a node that copies of this rank are complete elsewhere, where this generation has placed them. Raises
    TransferError."""
    with _as_sentence(f"{endpoint} did not get the request to drop its copies of rank {rank}"):
        secret = Secret(token, run)
        stream = await _connect(endpoint, patience_s, tls)

        def work() -> None:
            introduce(stream, secret, endpoint)
            frames.say(stream, frames.Drop(rank=rank, generation=generation))
            frames.hear(stream, frames.Stored)

        await in_thread(work, stream.abort, f"drop-rank-{rank}", release=stream.close)


async def fetch(
    endpoint: str,
    token: str,
    *,
    rank: int,
    step: int,
    make_arena: Callable[[int], int],
    run: str = "",
    patience_s: float = PATIENCE_S,
    tls: Tls | None = None,
) -> int:
    """The descriptor of an arena that holds the snapshot of `rank` at `step`, and nothing else; the caller's from now
    on.

    `make_arena(capacity_bytes)` makes the empty arena of that rank, with buffers of at least that size, and gives its
    descriptor away; it is called once, in a thread, and may raise. Raises TransferError.
    """
    secret = Secret(token, run)
    fetching = _Fetching(rank, step, make_arena)
    left = _NUM_ATTEMPTS
    with (
        contextlib.closing(fetching),
        _as_sentence(f"the snapshot of rank {rank} at step {step} could not be fetched from {endpoint}"),
    ):
        while True:
            left -= 1
            try:
                stream = await _connect(endpoint, patience_s, tls)
                work = functools.partial(fetching.work, stream, secret, endpoint)
                return await in_thread(work, stream.abort, f"fetch-rank-{rank}", discard=os.close, release=stream.close)
            except StreamError as error:
                if error.is_silence or not left:
                    raise
                await asyncio.sleep(_PAUSE_S)


class _Fetching:
    """The state that stays from one attempt to the next. While a thread is at work, it is the thread that closes the
    descriptor."""

    def __init__(self, rank: int, step: int, make_arena: Callable[[int], int]) -> None:
        self._rank = rank
        self._step = step
        self._make_arena = make_arena
        self._fd: int | None = None
        self._known: dict[int, Known] = {}
        self._lock = threading.Lock()
        self._is_at_work = False
        self._is_unwanted = False

    def work(self, stream: Stream, secret: Secret, endpoint: str) -> int:
        """One attempt, in a thread; the descriptor is given away."""
        self._is_at_work = True
        try:
            introduce(stream, secret, endpoint)
            frames.say(stream, frames.Fetch(rank=self._rank, step=self._step))
            incoming = self._prepare(stream, frames.hear(stream, frames.Offering).offer)
            incoming.run(stream, incoming.publish)
            return self._give_away()
        finally:
            stream.close()
            with self._lock:
                self._is_at_work = False
            if self._is_unwanted:
                self.close()

    def close(self) -> None:
        """Close: the descriptor is not wanted any more. A running transfer keeps it until it is done."""
        with self._lock:
            self._is_unwanted = True
            if self._is_at_work:
                return
            fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)

    def _prepare(self, stream: Stream, offer: frames.Offer) -> Incoming:
        if (offer.rank, offer.step) != (self._rank, self._step) or offer.impossible():
            raise StreamError(f"offered {offer.impossible() or f'rank {offer.rank}, step {offer.step}'}")
        try:
            if self._fd is None:
                self._fd = self._make_arena(offer.capacity_bytes)
            return Incoming(self._fd, offer, self._known)
        except Exception as error:
            with contextlib.suppress(StreamError):
                frames.say(stream, frames.Refused(why="there is no memory for it"))
            if isinstance(error, Refusal):
                raise
            raise Refusal(f"the memory for it could not be made: {error}") from error

    def _give_away(self) -> int:
        fd, self._fd = self._fd, None
        assert fd is not None
        return fd


def _push(stream: Stream, outgoing: Outgoing, limiter: Limiter) -> Pushed:
    began = time.monotonic()
    frames.say(stream, frames.Push(offer=outgoing.offer))
    if not frames.hear(stream, frames.Known).is_complete:
        outgoing.send(stream, limiter)
    return Pushed(
        bytes_sent=outgoing.sent_bytes,
        bytes_known=max(0, outgoing.offer.length - outgoing.sent_bytes),
        took_s=time.monotonic() - began,
    )


async def _connect(endpoint: str, patience_s: float, tls: Tls | None) -> Stream:
    host, _, port = endpoint.rpartition(":")
    host = host.strip("[]")
    if not host or not port.isdecimal():
        raise Refusal(f"{endpoint!r} is not host:port")
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        sock.setblocking(False)
        async with asyncio.timeout(CONNECT_S):
            await asyncio.get_running_loop().sock_connect(sock, (host, int(port)))
        return Stream(sock, patience_s) if tls is None else tls.called(sock, patience_s)
    except BaseException:
        sock.close()
        raise


@contextlib.contextmanager
def _as_sentence(what: str) -> Iterator[None]:
    """Failures of the transfer, for people; what is not about the transfer stays as it is."""
    try:
        yield
    except Refusal as error:
        raise TransferError(f"{what}: {error}", is_refusal=True) from error
    except (HandshakeError, StreamError) as error:
        is_refusal = isinstance(error, HandshakeError)
        raise TransferError(f"{what}: the other side {error}", is_refusal=is_refusal) from error
    except TimeoutError as error:
        raise TransferError(f"{what}: no answer within {CONNECT_S:.0f} s") from error
    except OSError as error:
        raise TransferError(f"{what}: {os.strerror(error.errno) if error.errno else error}") from error
