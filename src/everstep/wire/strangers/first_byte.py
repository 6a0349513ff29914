"""Whether a connection has sent anything: TLS takes some 70 KiB from its start, and a silent client shall not have
them."""

import asyncio
import socket


def has_said(sock: socket.socket) -> bool:
    """Whether a readable non-blocking socket has a byte; False: it only ends. The byte stays."""
    try:
        return bool(sock.recv(1, socket.MSG_PEEK))
    except BlockingIOError:
        return True  # a spurious wake-up: the reader waits for it
    except OSError:
        return False


async def hear(sock: socket.socket) -> None:
    """Wait for the first byte. Raises EOFError when the connection ends before."""
    loop = asyncio.get_running_loop()
    can_be_read = asyncio.Event()
    loop.add_reader(sock, can_be_read.set)
    try:
        await can_be_read.wait()
    finally:
        loop.remove_reader(sock)
    if not has_said(sock):
        raise EOFError("it ended before it said anything")
