"""What an agent leaves for the one after it: a list of its twins with their sockets, in a socket that nobody reads.

The agent posts the whole list at each change and takes the older one out. When it is killed, the process above it takes
the newest one (`holding`). The kernel keeps the descriptors meanwhile.
"""

import json
import logging
import os
import socket
from collections.abc import Sequence

from everstep.wire import local
from everstep.wire.launcher_frames import Parked

_MOST_BYTES = 1 << 20

_log = logging.getLogger(__name__)


class Mailbox:
    """Both ends of it: forks of this process have both as well."""

    def __init__(self) -> None:
        self._near, self._far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._near.setblocking(False)
        self._far.setblocking(False)
        self._is_empty = True

    def post(self, parked: Parked, fds: Sequence[int]) -> bool:
        """Replace what is there. False: the kernel does not take it, and nothing is there now."""
        try:
            if len(fds) > local.MAX_FDS:
                raise OSError(f"{len(fds)} descriptors are more than one message takes")
            socket.send_fds(self._near, [json.dumps(parked).encode()], list(fds))
        except OSError as error:
            _log.warning("the next agent would not get the twins of this one: %s", error)
            self.empty()
            return False
        if not self._is_empty:
            _close(self._take_one())
        self._is_empty = False
        return True

    def empty(self) -> None:
        """Drop what is there."""
        while taken := self._take_one():
            _close(taken)
        self._is_empty = True

    def take(self) -> tuple[Parked, list[int]]:
        """The newest list, and its descriptors. Nothing is there afterwards."""
        newest: tuple[bytes, list[int]] = (b'{"twins": []}', [])
        while taken := self._take_one():
            _close(newest)
            newest = taken
        self._is_empty = True
        parked: Parked = json.loads(newest[0])
        return parked, newest[1]

    def close(self) -> None:
        """For this process; others have their own ends."""
        self._near.close()
        self._far.close()

    def _take_one(self) -> tuple[bytes, list[int]] | None:
        try:
            data, fds = local.receive(self._far, _MOST_BYTES)
        except BlockingIOError:
            return None
        return (data, fds) if data else None


def _close(taken: tuple[bytes, list[int]] | None) -> None:
    for fd in taken[1] if taken is not None else ():
        os.close(fd)
