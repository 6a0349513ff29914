"""Plain connections of strangers are read in small pieces: each piece is kept until it was looked at, or longer.

asyncio takes 256 KiB at once, and whoever may connect may have dozens of connections that all send as much.
"""

import asyncio

READ_BYTES = 16 << 10


def keep_reads_small(transport: asyncio.BaseTransport) -> None:
    """Of this connection, from now on. Nothing where the loop's transports have no such limit."""
    if hasattr(transport, "max_size"):  # asyncio's own for sockets; not documented
        transport.max_size = READ_BYTES
