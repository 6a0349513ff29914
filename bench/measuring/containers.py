"""Containers that come and go beside a measurement, as a machine sees them: a veth pair on a bridge, a cgroup, and
a process in namespaces of its own. No traffic is sent."""

import contextlib
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

BRIDGE = "esb0"
CGROUPS = Path("/sys/fs/cgroup/memory")


@contextlib.contextmanager
def containers(each_s: float = 0.5) -> Iterator[None]:
    """One more and one less every `each_s` seconds; needs root and iproute2."""
    over = threading.Event()
    _ip("link", "add", BRIDGE, "type", "bridge")
    thread = threading.Thread(target=_churn, args=(over, each_s), daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        _ip("link", "del", BRIDGE)


def _churn(over: threading.Event, each_s: float) -> None:
    number = 0
    while not over.is_set():
        number += 1
        veth, peer, group = f"vethes{number % 1000}", f"eth{number % 1000}es", CGROUPS / f"es-container-{number}"
        _ip("link", "add", veth, "type", "veth", "peer", "name", peer)
        _ip("link", "set", veth, "master", BRIDGE, "up")
        _ip("link", "set", peer, "up")
        with contextlib.suppress(OSError):
            group.mkdir()
        inside = subprocess.Popen(
            ["unshare", "--net", "--uts", "--mount", "--pid", "--fork", "--kill-child=KILL", "sleep", "60"]
        )
        over.wait(each_s)
        inside.kill()
        inside.wait()
        _ip("link", "del", veth)
        with contextlib.suppress(OSError):
            group.rmdir()


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=False, env=os.environ)
