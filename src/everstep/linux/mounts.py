"""Filesystems that machines share: a file there can be seen elsewhere, and every call can wait for a server."""

from pathlib import Path

REMOTE = frozenset(
    {"nfs", "nfs4", "lustre", "ceph", "gpfs", "beegfs", "glusterfs", "cifs", "smb3", "9p", "virtiofs", "wekafs", "afs"}
)


def is_remote(kind: str) -> bool:
    """A type as the kernel's tables of mounts have it. FUSE may be anything; its block devices are this machine's."""
    return kind in REMOTE or kind == "fuse" or kind.startswith("fuse.")


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
    return not kind or is_remote(kind)


def mounts_of_this_process() -> str:
    """Empty if they cannot be read."""
    try:
        return Path("/proc/self/mounts").read_text()
    except OSError:
        return ""
