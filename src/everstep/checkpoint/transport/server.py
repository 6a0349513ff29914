"""A node's server side: takes snapshots of other nodes' ranks, and gives out those that this node holds.

The event loop only accepts; each connection is a thread, which ends when its peer makes no progress. An unauthenticated
peer gets nothing but random bytes, has five seconds, and cannot keep others out.
"""

import asyncio
import collections
import contextlib
import ipaddress
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable
from typing import NoReturn, Protocol

from everstep.checkpoint import arena
from everstep.checkpoint.transport import frames
from everstep.checkpoint.transport.client import PATIENCE_S
from everstep.checkpoint.transport.handshake import HandshakeError, Secret, admit
from everstep.checkpoint.transport.incoming import Incoming, Source, sources_in
from everstep.checkpoint.transport.outcome import Refusal
from everstep.checkpoint.transport.outgoing import Outgoing
from everstep.checkpoint.transport.pacing import Limiter
from everstep.checkpoint.transport.stream import Stream, StreamError
from everstep.checkpoint.transport.threads import ask_loop
from everstep.checkpoint.transport.tls import Tls
from everstep.errors import ConfigError
from everstep.wire.strangers.guests import Guests
from everstep.wire.strangers.owner import Owners

_MOST_STRANGERS = 256
"""Connections that have proven nothing yet. A user of this machine, or an address, has an eighth; one more costs the
oldest of these its place."""

_MOST_PEERS = 256  # transfers at a time; a node has as many as there are ranks that it holds copies of
_BACKLOG = 128
_LOOP_S = 5.0  # an agent whose loop is busy for longer is in worse trouble
_END_S = 5.0

_log = logging.getLogger(__name__)


class Shelf(Protocol):
    """Where pushed snapshots are kept; called from the threads of connections. See `checkpoint.backups`."""

    def begin(self, offer: frames.Offer, stop: Callable[[], None]) -> Incoming | None:
        """Where to put this snapshot; None: it is here. `stop` ends the transfer when it is not wanted any more.
        Raises Refusal."""

    def publish(self, incoming: Incoming) -> None:
        """All of it has arrived. Raises Refusal if it is not wanted any more."""

    def end(self, incoming: Incoming) -> None:
        """The transfer is over, complete or not."""

    def let_go(self, rank: int, generation: int) -> None:
        """This generation copies the rank elsewhere, and the copy there is complete."""

    def duplicates(self, rank: int | None) -> list[int]:
        """Descriptors of the memory that is held for this rank, or for all; the caller closes them."""


class Server:
    """One per node. `rejected` counts by kind what was turned away: strangers (garbage, version, proof, silence,
    crowd), and transfers that were refused or broke off."""

    def __init__(
        self,
        token: str,
        shelf: Shelf,
        own: Callable[[], Iterable[tuple[int, int]]],
        *,
        run: str = "",
        host: str = "127.0.0.1",
        beyond_loopback: bool = False,
        patience_s: float = PATIENCE_S,
        tls: Tls | None = None,
    ) -> None:
        """`own()` gives (rank, fd) of the arenas of this node's own ranks; it is called in the event loop."""
        self._secret = Secret(token, run)
        self._shelf = shelf
        self._own = own
        self._address = ipaddress.ip_address(host)
        self._tls = tls
        if not self._address.is_loopback and not beyond_loopback and tls is None:
            raise ConfigError(
                f"snapshots would be served on {host} without encryption; say that this network is the job's own"
            )
        self._patience_s = patience_s
        self.rejected: collections.Counter[str] = collections.Counter()
        self._endpoint = ""
        self._lock = threading.Lock()
        self._threads: dict[Stream, threading.Thread] = {}  # of all connections
        self._strangers = Guests(_MOST_STRANGERS)  # those that have proven nothing yet
        self._owners = Owners()
        self._listener: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def start(self) -> str:
        """Listen; returns the endpoint, which others must use exactly as given: their proof covers it."""
        family = socket.AF_INET6 if self._address.version == 6 else socket.AF_INET
        self._loop = asyncio.get_running_loop()
        self._listener = socket.create_server((str(self._address), 0), family=family, backlog=_BACKLOG)
        self._listener.setblocking(False)
        port = self._listener.getsockname()[1]
        self._endpoint = f"[{self._address}]:{port}" if self._address.version == 6 else f"{self._address}:{port}"
        self._accepting = asyncio.create_task(self._accept(self._listener))
        return self._endpoint

    async def close(self) -> None:
        """End everything. What was half pushed is not published."""
        if self._accepting is not None:
            self._accepting.cancel()
            await asyncio.gather(self._accepting, return_exceptions=True)
        if self._listener is not None:
            self._listener.close()
        with self._lock:
            left = dict(self._threads)
        for stream in left:
            stream.abort()
        self._owners.close()
        await asyncio.to_thread(_join, list(left.values()), _END_S)

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock, peer = await loop.sock_accept(listener)
            except OSError as error:  # out of descriptors, or the peer is gone already: neither ends the server
                _log.warning("snapshots: a connection could not be accepted: %s", error)
                await asyncio.sleep(0.1)
                continue
            try:
                self._welcome(sock, peer)
            except Exception:
                _log.exception("snapshots: a connection could not be served")
                sock.close()

    def _welcome(self, sock: socket.socket, peer: object) -> None:
        """Raises OSError, RuntimeError."""
        patience_s = self._patience_s
        user = self._owners.who(peer, sock.getsockname())  # before TLS takes the socket over
        stream = Stream(sock, patience_s) if self._tls is None else self._tls.answered(sock, patience_s)
        thread = threading.Thread(target=self._serve, args=(stream,), name="snapshots-peer", daemon=True)
        with self._lock:
            before = len(self._strangers)
            is_in = self._strangers.admit(stream, user)
            self.rejected["crowd"] += before + is_in - len(self._strangers) + (not is_in)
            if is_in:
                self._threads[stream] = thread
        if not is_in:
            stream.close()
            return
        try:
            thread.start()
        except RuntimeError:  # no room for one more
            self._forget(stream)
            raise

    def _serve(self, stream: Stream) -> None:
        """The life of one connection, in its thread. Nothing leaves it."""
        kind = "silence"
        try:
            admit(stream, self._secret, self._endpoint)
            kind = "broken"
            self._promote(stream)
            match frames.hear(stream, frames.Push, frames.Fetch, frames.Drop):
                case frames.Push(offer=offer):
                    self._take(stream, offer)
                case frames.Fetch(rank=rank, step=step):
                    self._give(stream, rank, step)
                case frames.Drop(rank=rank, generation=generation):
                    self._shelf.let_go(rank, generation)
                    frames.say(stream, frames.Stored())
        except HandshakeError as error:
            self._reject(error.kind)
        except StreamError as error:
            self._reject(kind)
            if kind == "broken":
                _log.info("snapshots: a transfer ended early: the other side %s", error)
        except Refusal as refusal:
            _log.info("snapshots: %s", refusal)
        except Exception:
            _log.exception("snapshots: a transfer failed here")
        finally:
            self._forget(stream)

    def _forget(self, stream: Stream) -> None:
        stream.close()
        with self._lock:
            self._strangers.leave(stream)
            self._threads.pop(stream, None)

    def _promote(self, stream: Stream) -> None:
        with self._lock:
            self._strangers.leave(stream)
            num_peers = len(self._threads) - len(self._strangers)
        if num_peers > _MOST_PEERS:
            self._refuse(stream, f"{_MOST_PEERS} transfers are under way here")

    def _reject(self, kind: str) -> None:
        with self._lock:
            self.rejected[kind] += 1

    def _refuse(self, stream: Stream, why: str) -> NoReturn:
        self._reject("refused")
        with contextlib.suppress(StreamError):
            frames.say(stream, frames.Refused(why=why))
        raise Refusal(why)

    def _take(self, stream: Stream, offer: frames.Offer) -> None:
        """A push. What has arrived when it breaks off stays on the shelf for the next attempt."""
        impossible = offer.impossible()
        if impossible:
            self._refuse(stream, f"there is no such snapshot: {impossible}")
        try:
            incoming = self._shelf.begin(offer, stream.abort)
        except Refusal as refusal:
            self._refuse(stream, str(refusal))
        if incoming is None:
            frames.say(stream, frames.Known(is_complete=True))
            return
        try:
            with contextlib.ExitStack() as opened:
                incoming.look_in(self._replicas(offer, opened))
                incoming.run(stream, lambda: self._shelf.publish(incoming))
        finally:
            self._shelf.end(incoming)

    def _replicas(self, offer: frames.Offer, opened: contextlib.ExitStack) -> list[Source]:
        """Other ranks' snapshots of this step that are here: with data parallelism most of their pieces are the
        same."""
        found: list[Source] = []
        try:
            fds = _opened(self._own_duplicates(None), opened) + _opened(self._shelf.duplicates(None), opened)
        except TimeoutError:
            return []
        for fd in fds:
            if arena.inspect(fd).rank != offer.rank:
                with contextlib.suppress(Refusal):
                    found += sources_in(fd, lambda snapshot: snapshot.step == offer.step)
        return found

    def _give(self, stream: Stream, rank: int, step: int) -> None:
        """Serve a fetch: out of the memory of the rank itself if it is one of this node's, else of the copy.

        Nothing is pinned: the job resumes from what is fetched, so newer snapshots are not written before it has
        arrived; if one is, the other side gets nothing."""
        with contextlib.ExitStack() as opened:
            try:
                fd, snapshot = self._find(rank, step, opened)
                outgoing = Outgoing(fd, rank, snapshot)
            except (Refusal, TimeoutError) as error:
                self._refuse(stream, str(error) or "this node is too busy to look")
            frames.say(stream, frames.Offering(offer=outgoing.offer))
            frames.hear(stream, frames.Known)
            outgoing.send(stream, Limiter())  # a restart waits for it: never slowed down

    def _find(self, rank: int, step: int, opened: contextlib.ExitStack) -> tuple[int, arena.Snapshot]:
        """Find the step. If it is there twice, the newer generation's: the other one is of an abandoned history."""
        found = [
            (fd, snapshot)
            for source in (self._own_duplicates, self._shelf.duplicates)
            for fd in _opened(source(rank), opened)
            for snapshot in arena.inspect(fd).snapshots
            if snapshot.step == step
        ]
        if not found:
            raise Refusal(f"this node holds no snapshot of rank {rank} at step {step}")
        return max(found, key=lambda entry: entry[1].generation)

    def _own_duplicates(self, rank: int | None) -> list[int]:
        """From a thread: the arenas are the event loop's. Raises TimeoutError if it has no time."""

        def duplicate() -> list[int]:
            made = []
            for owner, fd in self._own():
                if rank in (None, owner):
                    with contextlib.suppress(OSError):  # out of descriptors: as if it were not there
                        made.append(os.dup(fd))
            return made

        assert self._loop is not None
        return ask_loop(self._loop, duplicate, _LOOP_S)


def _opened(fds: list[int], opened: contextlib.ExitStack) -> list[int]:
    for fd in fds:
        opened.callback(os.close, fd)
    return fds


def _join(threads: list[threading.Thread], limit_s: float) -> None:
    ends_at = time.monotonic() + limit_s
    for thread in threads:
        thread.join(max(0.0, ends_at - time.monotonic()))
