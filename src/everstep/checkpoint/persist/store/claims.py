"""Claims on a persistent tier, "writing here" or "collecting here", by processes that may be killed.

Answers: does the owner of a claim still live. A claim is a small file that its owner writes anew now and then. One of
this machine is checked against the process itself; one of another machine counts until it is old. Called by `retention`
and `writing`. It prevents waste, not damage: a commit looks at every object again.
"""

import contextlib
import os
import time
from pathlib import Path

from everstep.checkpoint.persist.store.plain import SMALL_BYTES
from everstep.checkpoint.persist.store.storage import Storage
from everstep.linux import proc

RENEW_S = 5.0
STALE_S = 60.0
"""Twelve renewals: a storage that answers more slowly than that looks like a machine that is gone."""


class Claim:
    """Ours. `renew` costs a write every few seconds and nothing in between."""

    def __init__(self, storage: Storage, name: str) -> None:
        self._storage = storage
        self._name = name
        self._at = -STALE_S
        self.renew()

    def renew(self) -> bool:
        """Renew the claim. False: it was not renewed for so long that others may ignore it; stop what it protects."""
        now = time.monotonic()
        is_kept = self._at < 0 or now - self._at < STALE_S / 2
        if is_kept and now - self._at >= RENEW_S:
            self._storage.write(self._name, [_identity(os.getpid()).encode()])
            self._at = time.monotonic()
        return is_kept

    def give_up(self) -> None:
        self._storage.remove(self._name)


def is_claimed(storage: Storage, name: str) -> bool:
    """Raises OSError."""
    age_s = storage.age_s(name)
    if age_s is None and storage.size(name) is None:
        return False
    try:
        words = storage.read(name, SMALL_BYTES).decode("utf-8", "replace").split()
    except FileNotFoundError:
        return False
    if words[:2] == _identity(os.getpid()).split()[:2] and len(words) == 4 and words[2].isdigit():
        return _identity(int(words[2])).split() == words
    return age_s is None or age_s < STALE_S


def _identity(pid: int) -> str:
    """Boot, namespace of process ids, process id, its start: the same for the same process only."""
    found = proc.stat(pid)
    began = "gone" if found is None else str(found.began)
    boot, space = "unknown-boot", "unknown-space"
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        space = str(Path("/proc/self/ns/pid").readlink())
    return f"{boot} {space} {pid} {began}"
