"""Filesystems: full, suddenly read-only, or not answering. Each is asked in its own thread with a time limit.

Free space is checked where the run writes; an answer and write access on every real filesystem of the node.
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from everstep.linux.mounts import is_remote
from everstep.model.facts import Alert
from everstep.probes.node.bounded import Bounded
from everstep.probes.sense import UnsupportedError, alert, read_text

EVERY_S = 15.0
HUNG_AFTER_S = 5.0
LEAST_SHARE = 0.01
LEAST_BYTES = 64 << 20
"""A filesystem is full if it has less than either of the two; a small one only if it has less than the share."""
MAX_MOUNTS = 64
_SYSTEM = ("/", "/tmp", "/var", "/dev/shm")
"""Places where every program writes. Elsewhere a read-only mount may be on purpose: only a warning."""
_LOCAL = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "zfs", "bcachefs", "vfat", "overlay", "tmpfs"})


class Mount(msgspec.Struct, frozen=True, kw_only=True):
    point: str
    kind: str
    device: str
    is_read_only: bool

    @property
    def is_remote(self) -> bool:
        return is_remote(self.kind)


class Room(msgspec.Struct, frozen=True, kw_only=True):
    """Free and total space. None: the filesystem does not count it."""

    free_bytes: int
    total_bytes: int
    free_inodes: int | None = None
    total_inodes: int | None = None


def parse_mounts(text: str) -> list[Mount]:
    """Real filesystems of a table like /proc/self/mounts; of several at one mount point the last one, the visible
    one."""
    mounts: dict[str, Mount] = {}
    for line in text.splitlines():
        words = line.split()
        if len(words) < 4:
            continue
        device, point, kind, options = (_unescape(word) for word in words[:4])
        mounts.pop(point, None)
        if kind in _LOCAL or is_remote(kind):
            read_only = "ro" in options.split(",")
            mounts[point] = Mount(point=point, kind=kind, device=device, is_read_only=read_only)
    return list(mounts.values())


def is_full(room: Room) -> str:
    """Return what has run out: "room" or "inodes"; empty if there is enough."""
    if room.total_bytes > 0 and room.free_bytes < room.total_bytes * LEAST_SHARE:
        return "room"
    if room.free_bytes < LEAST_BYTES <= room.total_bytes * LEAST_SHARE:
        return "room"
    if room.total_inodes and room.free_inodes is not None and room.free_inodes < room.total_inodes * LEAST_SHARE:
        return "inodes"
    return ""


def ask_room(path: str) -> Room:
    """Free and total space. Raises OSError. May never return: call it through `Bounded`."""
    found = os.statvfs(path)
    return Room(
        free_bytes=found.f_bavail * found.f_frsize,
        total_bytes=found.f_blocks * found.f_frsize,
        free_inodes=found.f_favail if found.f_files else None,
        total_inodes=found.f_files or None,
    )


class Filesystems:
    """The sense for filesystems. `written`: folders that need free space."""

    name = "filesystems"
    every_s = EVERY_S

    def __init__(
        self,
        written: Sequence[Path],
        *,
        mounts: Path = Path("/proc/self/mounts"),
        ask: Callable[[str], Room] = ask_room,
        hung_after_s: float = HUNG_AFTER_S,
    ) -> None:
        self._written = [str(path.absolute()) for path in written]
        self._mounts = mounts
        self._ask = ask
        self._hung_after_s = hung_after_s
        self._bounded: Bounded[Room] = Bounded()
        self._was_writable: dict[str, str] = {}  # mount point -> device

    def look(self, now: float) -> list[Alert]:
        mounts = parse_mounts(read_text(self._mounts) or "")
        if not mounts:
            raise UnsupportedError(f"{self._mounts} lists no filesystem")
        used = {point for path in self._written if (point := _below(path, mounts))}
        # First the ones that the run writes to, then by name: a container host has hundreds.
        mounts.sort(key=lambda mount: (mount.point not in used, not mount.is_remote, mount.point))
        alerts: list[Alert] = []
        for mount in mounts[:MAX_MOUNTS]:
            alerts += self._read_only(mount, mount.point in used, now) + self._answer(mount, mount.point in used, now)
        return alerts

    def close(self) -> None:
        return

    def _read_only(self, mount: Mount, is_used: bool, now: float) -> list[Alert]:
        if not mount.is_read_only:
            self._was_writable[mount.point] = mount.device
            return []
        if self._was_writable.get(mount.point) != mount.device:
            return []  # it was always read-only, or another filesystem is mounted there now
        what = f"filesystem {mount.point} ({mount.device}, {mount.kind}) is read-only now; it was writable"
        return [self._say("ES-M25", mount, what, now, "" if is_used or mount.point in _SYSTEM else "warning")]

    def _answer(self, mount: Mount, is_used: bool, now: float) -> list[Alert]:
        try:
            room = self._bounded.call(mount.point, lambda: self._ask(mount.point), self._hung_after_s)
        except TimeoutError:
            what = f"filesystem {mount.point} ({mount.device}, {mount.kind}) does not answer"
            return [self._say("ES-M26", mount, what, now, "" if is_used else "warning")]
        except OSError:
            return []  # it is gone, or not permitted: no alert
        lacks = is_full(room) if is_used and not mount.is_read_only else ""
        if not lacks:
            return []
        left = f"{room.free_bytes / (1 << 20):.0f} MiB" if lacks == "room" else f"{room.free_inodes} inodes"
        return [self._say("ES-M24", mount, f"filesystem {mount.point} is full: {left} left", now)]

    def _say(self, code: str, mount: Mount, sentence: str, now: float, severity: str = "") -> Alert:
        return alert(code, sentence, at=now, source=self.name, device=mount.point, severity=severity)


def _below(path: str, mounts: Sequence[Mount]) -> str:
    """The mount point that contains a path: the longest one above it."""
    held = [m.point for m in mounts if path == m.point or path.startswith(m.point.rstrip("/") + "/")]
    return max(held, key=len, default="")


def _unescape(word: str) -> str:
    """The kernel writes blanks as \\040."""
    for code, char in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        word = word.replace(code, char)
    return word
