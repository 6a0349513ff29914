"""TLS connections that use little memory: a client may open hundreds of them before it has proven anything.

asyncio gives each 256 KiB to read into, from its first byte on. A record of TLS has 16 KiB at most.
"""

from asyncio import sslproto

READ_BYTES = 32 << 10


def keep_tls_lean() -> None:
    """Of all that this process opens or accepts from now on."""
    sslproto.SSLProtocol.max_size = READ_BYTES
