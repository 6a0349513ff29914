"""Ports that stay free until a process that a test starts has bound them."""

import os
import random
import socket
from pathlib import Path

FIRST = 10_000
"""Below it are the services of the machine."""

_CHOSEN = random.SystemRandom()  # not the seed of the test: processes of pytest beside each other choose alike with it


def free_port(host: str = "127.0.0.1", kind: socket.SocketKind = socket.SOCK_STREAM) -> int:
    """A port that nobody has, from below those that the kernel gives to whoever connects or asks for any port.

    One of those may be gone between the question and the program's own `bind`.
    """
    given = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    for _ in range(100):
        with socket.socket(socket.AF_INET, kind) as free:
            port = _CHOSEN.randrange(FIRST, int(given[0]))
            try:
                free.bind((host, port))
            except OSError:
                continue
            return port
    raise OSError(f"no free port on {host} in {FIRST} to {given[0]} (process {os.getpid()})")
