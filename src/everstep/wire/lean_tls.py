"""TLS that costs our processes little: memory for each connection, and time when they start."""

import os
import sys
from asyncio import sslproto

READ_BYTES = 32 << 10

_AUTHORITIES = ("SSL_CERT_FILE", "SSL_CERT_DIR")
"""Where OpenSSL looks for certificates of public authorities, if they are set."""


def keep_tls_lean() -> None:
    """Keep all connections small that this process opens or accepts from now on.

    asyncio gives each connection 256 KiB to read into, from its first byte on, and a client may open hundreds of them
    before it has proven anything. A record of TLS has 16 KiB at most.
    """
    sslproto.SSLProtocol.max_size = READ_BYTES


def import_aiohttp() -> None:
    """Import aiohttp without the certificates of public authorities, which it reads twice when it is imported: a sixth
    of the time in which one of our processes starts. Our links pin one certificate; notices read the authorities'."""
    if "aiohttp" in sys.modules:
        return
    earlier = {name: os.environ.get(name) for name in _AUTHORITIES}
    os.environ.update(dict.fromkeys(_AUTHORITIES, os.devnull))
    try:
        import aiohttp  # noqa: F401 - only so that it is there
    finally:
        for name, value in earlier.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
