"""Waits until enough hosts have what is on record here: before that nothing of it is carried out or acknowledged.

The launcher gives the journal to other hosts (`launcher.heirs.copying`); this side only sends its length, and receives
up to where it counts. Without other hosts there is nothing to wait for, and none of this.
"""

import asyncio
import socket

from everstep.errors import WireError

_MAX_BYTES = 64


class Copied:
    def __init__(self, sock: socket.socket) -> None:
        """`sock`: to the launcher."""
        self._sock = sock
        self._safe = -1
        self._turn = asyncio.Lock()
        sock.setblocking(False)

    async def settle(self, size: int) -> None:
        """Until `size` bytes of the journal count."""
        if self._safe >= size:
            return
        loop = asyncio.get_running_loop()
        async with self._turn:
            await loop.sock_sendall(self._sock, str(size).encode())
            while self._safe < size:
                told = await loop.sock_recv(self._sock, _MAX_BYTES)
                if not told:
                    raise WireError("the launcher, which gives the journal to other hosts, is gone")
                self._safe = max(self._safe, int(told))

    def close(self) -> None:
        self._sock.close()
