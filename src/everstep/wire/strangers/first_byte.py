"""Whether a connection says anything: TLS takes some 70 KiB from its beginning on, and whoever connects and is silent
shall not have them."""

import asyncio
import socket


def has_said(sock: socket.socket) -> bool:
    """Of a socket that can be read and does not block; False: it only ends. The byte stays."""
    try:
        return bool(sock.recv(1, socket.MSG_PEEK))
    except BlockingIOError:
        return True  # woken for nothing: whoever reads waits for it
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
