"""Twins that outlive their agent: what this one leaves to the next, and what it has from the one before.

Only twins that wait are left: with another one, a request or its answer may be under way. Used by `readiness`; the next
agent is one of the processes of `processes/holding`.
"""

import contextlib
import logging
import os
import socket
from collections.abc import Sequence
from pathlib import Path

import msgspec

from everstep.agent.processes.holding import Line
from everstep.agent.ranks.twin import Prefix, Twin
from everstep.agent.ranks.warden import Warden
from everstep.agent.versions.placing import Placed
from everstep.wire.launcher_frames import Parked, ParkedTwin

_log = logging.getLogger(__name__)


class Bequest:
    """Without a line of processes above this one, the twins end with the agent."""

    def __init__(self, line: Line | None, warden: Warden) -> None:
        self._line = line
        self._warden = warden
        self._placed: dict[int, tuple[Placed, int]] = {}  # by identity: ranks of one start share it
        self._shown: list[tuple[int, bool]] = []

    def show(self, idle: Sequence[tuple[int, Twin]]) -> None:
        """Leave these twins, with their local ranks, to the next agent, and no others."""
        if self._line is None or not self._line.num_above:
            return
        shown = [(twin.pid, twin.is_made_ready) for _, twin in idle]
        if shown == self._shown:
            return
        self._shown = shown
        self._forget_placed([twin.placed for _, twin in idle])
        placed = {id(twin.placed): self._memory_of(twin.placed) for _, twin in idle}
        order = list(placed)
        parked: Parked = {"twins": [_note(rank, twin, order.index(id(twin.placed))) for rank, twin in idle]}
        is_left = self._line.mailbox.post(parked, [*(twin.channel.fileno() for _, twin in idle), *placed.values()])
        self._warden.spare_twins(pid for pid, _ in shown if is_left)

    def take(self) -> list[tuple[int, Twin]]:
        """The twins of the agent before, by local rank. They have to be told whose they are."""
        if self._line is None:
            return []
        (parked, fds), self._line.parked = self._line.parked, ({"twins": []}, [])
        num = len(parked["twins"])
        try:
            placed = [msgspec.json.decode(_read(fd), type=Placed) for fd in fds[num:]]
            socks = [socket.socket(fileno=os.dup(fd)) for fd in fds[:num]]
            return [
                (note["local_rank"], _twin(note, sock, placed[note["placed"]]))
                for note, sock in zip(parked["twins"], socks, strict=True)
            ]
        except (OSError, ValueError, LookupError, TypeError) as error:
            _log.warning("the twins of the agent before cannot be taken over: %s", error)
            return []
        finally:
            for fd in fds:
                os.close(fd)

    def _memory_of(self, placed: Placed) -> int:
        if id(placed) not in self._placed:
            fd = os.memfd_create("everstep-placed", os.MFD_CLOEXEC)
            with open(fd, "wb", closefd=False) as file:
                file.write(msgspec.json.encode(placed))
            self._placed[id(placed)] = placed, fd
        return self._placed[id(placed)][1]

    def _forget_placed(self, used: Sequence[Placed]) -> None:
        for key in self._placed.keys() - set(map(id, used)):
            os.close(self._placed.pop(key)[1])


def _note(local_rank: int, twin: Twin, placed: int) -> ParkedTwin:
    return {
        "local_rank": local_rank,
        "pid": twin.pid,
        "stage": twin.stage,
        "stdout": str(twin.prefix.stdout),
        "stderr": str(twin.prefix.stderr),
        "out_bytes": twin.prefix.out_bytes,
        "err_bytes": twin.prefix.err_bytes,
        "reads": twin.reads,
        "is_last": twin.is_last,
        "has_imported": twin.is_made_ready,
        "placed": placed,
    }


def _twin(note: ParkedTwin, sock: socket.socket, placed: Placed) -> Twin:
    prefix = Prefix(
        stdout=Path(note["stdout"]),
        stderr=Path(note["stderr"]),
        out_bytes=note["out_bytes"],
        err_bytes=note["err_bytes"],
    )
    twin = Twin(sock, stage=note["stage"], placed=placed, prefix=prefix, reads=note["reads"], is_last=note["is_last"])
    twin.has_imported = note["has_imported"]
    return twin


def _read(fd: int) -> bytes:
    data = b""
    with contextlib.suppress(OSError):
        while part := os.pread(fd, 1 << 20, len(data)):
            data += part
    return data
