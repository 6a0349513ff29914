"""Where the store lies: on a disk of this machine, or on a filesystem that several machines share.

SQLite's write-ahead log needs memory that all writers share, so it must not be used across machines. Called by
`health.store` when it makes the file.
"""

from pathlib import Path

_SHARED = frozenset(
    {"nfs", "nfs4", "lustre", "ceph", "gpfs", "beegfs", "glusterfs", "cifs", "smb3", "9p", "virtiofs", "wekafs", "afs"}
)


def is_shared(path: Path, mounts: str) -> bool:
    """Whether other machines may see the same file. `mounts`: text of /proc/self/mounts. Unknown counts as shared."""
    wanted = str(path.absolute())
    best, kind = "", ""
    for line in mounts.splitlines():
        words = line.split()
        if len(words) < 3:
            continue
        point = words[1].replace("\\040", " ")
        if (wanted == point or wanted.startswith(point.rstrip("/") + "/")) and len(point) >= len(best):
            best, kind = point, words[2]
    return not kind or kind in _SHARED or kind.startswith("fuse")


def mounts_of_this_process() -> str:
    """Empty when it cannot be told."""
    try:
        return Path("/proc/self/mounts").read_text()
    except OSError:
        return ""
