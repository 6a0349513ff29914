"""One host's part that is the same on all of them: what it is, and whether bytes get to another one and back."""

import asyncio
import contextlib
import os
import platform
import socket
from pathlib import Path

from everstep.launcher.reach.place import addresses, interface_of
from everstep.launcher.survey.judging import LARGE
from everstep.version import __version__
from everstep.wire.survey import Facts, Peer

LIMIT_S = 5.0
BYTES = 64 << 10
"""More than a packet: where the path carries only smaller ones, and says nothing, these do not arrive."""


def facts_of(address: str, port: int, torch: str) -> Facts:
    """The facts about this host. Raises nothing: what cannot be found out is unknown."""
    host = socket.gethostname()
    interface = ""
    with contextlib.suppress(OSError):
        interface = interface_of(address)
    return Facts(
        host=host,
        address=address,
        port=port,
        everstep=__version__,
        torch=torch,
        python=platform.python_version().rpartition(".")[0],
        named=tuple(addresses(host)),
        interface=interface,
        mtu=_mtu(interface),
    )


def _mtu(interface: str) -> int | None:
    try:
        return int((Path("/sys/class/net") / interface / "mtu").read_text()) if interface else None
    except (OSError, ValueError):
        return None


async def answer(address: str) -> asyncio.Server:
    """Report to each client how many bytes arrived; the bytes are dropped. Raises OSError."""

    async def count(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, EOFError, TimeoutError):
            async with asyncio.timeout(LIMIT_S):
                await reader.readexactly(BYTES)
                writer.write(b"all")
                await writer.drain()
        writer.close()

    return await asyncio.start_server(count, address, 0)


async def why_not(peer: Peer) -> str:
    """Empty, or why it is not reached."""
    try:
        async with asyncio.timeout(LIMIT_S):
            reader, writer = await asyncio.open_connection(peer.address, peer.port)
    except TimeoutError:
        return f"no answer at port {peer.port} within {LIMIT_S:g} s"
    except OSError as error:
        return f"port {peer.port}: {_text(error)}"
    try:
        async with asyncio.timeout(LIMIT_S):
            writer.write(bytes(BYTES))
            await writer.drain()
            if await reader.read(3) == b"all":
                return ""
            return "the connection breaks off"
    except TimeoutError:
        return f"it connects, but {BYTES >> 10} KiB do not get there: the path may drop {LARGE}"
    except OSError as error:
        return f"the connection breaks off: {_text(error)}"
    finally:
        writer.transport.abort()


def _text(error: OSError) -> str:
    """In the system's words, which asyncio replaces by its own."""
    return os.strerror(error.errno) if error.errno else str(error)
