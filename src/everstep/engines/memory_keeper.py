"""Keeps duplicates of the agents' snapshot memory, so that it outlives an agent, and hands it to its successor.

It holds descriptors and reads no more than their headers. The frames are described in docs/architecture.md.
Everything ends with this process: the memory has no name.
"""

import asyncio
import contextlib
import logging
import os
import socket
import time
from dataclasses import dataclass, field
from typing import Any

from everstep.checkpoint import arena, held
from everstep.engines.lateness import Beats
from everstep.model.facts import Held
from everstep.wire.local import MAX_FDS, FrameError, FrameReader, send

log = logging.getLogger("everstep.launcher")

ARENAS_PER_RANK = 2
"""An arena that grew, and the one before it, whose snapshot counts until the new one has a complete one."""


@dataclass
class _Kept:
    holders: set[str]  # nodes that sent it or were given it
    note: dict[str, Any]
    fd: int
    identity: tuple[int, int]  # device and inode: the same memory sent twice is kept once


@dataclass
class _Line:
    sock: socket.socket
    reader: FrameReader = field(default_factory=FrameReader)


class MemoryKeeper:
    def __init__(self) -> None:
        self._kept: dict[int, list[_Kept]] = {}  # by rank, oldest first
        self._lines: dict[str, _Line] = {}
        self._word: dict[str, Any] = {}  # the last frame, for agents that come later
        self._runs: dict[str, frozenset[int]] = {}  # node -> ranks that it runs, or ran last
        self.beats = Beats()

    def open_line(self, node: str, inherited: tuple[str, ...] = ()) -> socket.socket:
        """The agent's end of a new line, which the caller closes after the start. In it already: the memory of
        the nodes in `inherited`."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self._lines[node] = _Line(ours)
        self.beats.expect(node, time.monotonic())
        if self._word:
            send(ours, self._word)
        self._hand_over(node, inherited)
        ours.setblocking(False)
        asyncio.get_running_loop().add_reader(ours.fileno(), self._receive, node)
        return theirs

    def close_line(self, node: str) -> None:
        """The agent is gone: take what it sent last. Its memory stays kept."""
        if node in self._lines:
            self._receive(node)
        self._drop_line(node)

    def offer(self, lost: str, node: str) -> None:
        """Give a running agent the memory of a lost one."""
        self._hand_over(node, (lost,))

    def tell(self, frame: dict[str, Any]) -> None:
        """Every agent of this machine, as far as it reads, and those that come."""
        self._word = frame
        for node, line in self._lines.items():
            try:
                send(line.sock, frame)
            except OSError as error:
                log.debug("%s does not take %s: %s", node, sorted(frame), error)

    def held_of(self, node: str) -> tuple[Held, ...]:
        """The complete snapshots in a lost node's memory, as the headers say."""
        found = (
            held.of_rank(rank, [kept.fd for kept in arenas if node in kept.holders])
            for rank, arenas in sorted(self._kept.items())
        )
        return tuple(each for of_rank in found for each in of_rank)

    def forget(self, node: str) -> None:
        """Drop what a node's ranks had: its machine is gone. Duplicates given to others are invalidated as well,
        because on a real machine there would be none."""
        gone = self._runs.pop(node, frozenset())
        for rank, arenas in list(self._kept.items()):
            for kept in [each for each in arenas if node in each.holders]:
                kept.holders.discard(node)
                if rank in gone:
                    arena.invalidate_after(kept.fd, -1)
                if rank in gone or not kept.holders:
                    arenas.remove(kept)
                    os.close(kept.fd)

    def close(self) -> None:
        for node in list(self._lines):
            self._drop_line(node)
        for arenas in self._kept.values():
            for kept in arenas:
                os.close(kept.fd)
        self._kept.clear()

    def _hand_over(self, node: str, lost: tuple[str, ...]) -> None:
        line = self._lines.get(node)
        if line is None:
            return
        line.sock.settimeout(2.0)  # small frames: it blocks only when the agent reads nothing at all
        try:
            for rank in sorted(self._kept):
                for kept in self._kept[rank]:
                    if kept.holders & set(lost) and node not in kept.holders:
                        send(line.sock, {"keep": kept.note}, (kept.fd,))
                        kept.holders.add(node)
            send(line.sock, {"kept": "end"})
        except OSError as error:
            log.warning("%s does not take kept snapshots: %s", node, error)
        finally:
            line.sock.setblocking(False)

    def _receive(self, node: str) -> None:
        line = self._lines.get(node)
        while line is not None:
            try:
                data, fds, _, _ = socket.recv_fds(line.sock, line.reader.wanted, MAX_FDS)
            except BlockingIOError:
                return
            except OSError:
                data, fds = b"", []
            if not data:
                self._drop_line(node)
                return
            line.reader.feed(data, fds)
            try:
                while (frame := line.reader.next()) is not None:
                    self._take(node, *frame)
            except FrameError as error:
                log.warning("%s sent something else than a frame; its snapshots are not kept: %s", node, error)
                self._drop_line(node)
                return

    def _take(self, node: str, frame: dict[str, Any], fds: list[int]) -> None:
        if isinstance(frame.get("runs"), list) and not fds:
            self._runs[node] = frozenset(rank for rank in frame["runs"] if isinstance(rank, int))
            return
        if "beat" in frame and not fds:
            self.beats.hear(node, time.monotonic())
            return
        note = frame.get("keep")
        rank = note.get("rank") if isinstance(note, dict) else None
        if not isinstance(note, dict) or not isinstance(rank, int) or len(fds) != 1:
            log.warning("%s sent a frame that the keeper does not know: %s", node, sorted(frame))
            for fd in fds:
                os.close(fd)
            return
        stat = os.fstat(fds[0])
        identity = (stat.st_dev, stat.st_ino)
        arenas = self._kept.setdefault(rank, [])
        for known in arenas:
            if known.identity == identity:
                known.holders.add(node)
                os.close(fds[0])
                return
        arenas.append(_Kept(holders={node}, note=note, fd=fds[0], identity=identity))
        while len(arenas) > ARENAS_PER_RANK:
            os.close(arenas.pop(0).fd)

    def _drop_line(self, node: str) -> None:
        line = self._lines.pop(node, None)
        if (silent_s := self.beats.longest_s.get(node)) is not None:
            log.info("%s said nothing for at most %.2f s", node, silent_s)
        self.beats.forget(node)
        if line is not None:
            with contextlib.suppress(RuntimeError, ValueError):
                asyncio.get_running_loop().remove_reader(line.sock.fileno())
            line.sock.close()
