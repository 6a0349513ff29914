"""Disks and filesystems: size, state, settings, errors; free space, inodes, mount options, and whether they answer.

A filesystem of a dead server blocks its callers: each is announced before it is asked, so the runner can name it.
"""

import os
import re
from collections.abc import Iterator

import msgspec

from everstep.linux.mounts import is_remote
from everstep.preflight.result import Better, Doing, Judgement, Result, Yielded, measured, unsupported
from everstep.preflight.settings import Settings
from everstep.preflight.sources import Place, names_in, parts, read_place, read_places, text_of, under, whole

_BLOCK = "/sys/block"
_NOT_DISKS = ("loop", "ram", "zram", "dm-", "md", "nbd", "sr", "fd")
_NOT_STORAGE = (
    "proc", "sysfs", "cgroup", "cgroup2", "devpts", "mqueue", "debugfs", "tracefs", "securityfs", "bpf", "pstore",
    "hugetlbfs", "configfs", "fusectl", "autofs", "binfmt_misc", "rpc_pipefs", "nsfs", "efivarfs", "squashfs", "ramfs",
)  # fmt: skip
_MAX_MOUNTS = 64  # container hosts have thousands, nearly all the same


class Mount(msgspec.Struct, frozen=True, kw_only=True):
    point: str
    kind: str
    source: str
    options: str
    super_options: str

    @property
    def is_remote(self) -> bool:
        return is_remote(self.kind)


def measure(settings: Settings) -> Iterator[Yielded]:
    root = settings.root
    disks = [name for name in names_in(root, _BLOCK) if not name.startswith(_NOT_DISKS)]
    how = f"list {_BLOCK}"
    yield measured("storage.disks", len(disks), "disks", how=how, better=Better.SAME, tolerance=0.0)
    yield from parts("storage", *(_disk(root, disk) for disk in disks))
    for name in (name for name in names_in(root, "/sys/class/nvme") if name.startswith("nvme")):
        yield from parts("storage", _nvme(root, name))
    found = mounts(root)
    for mount in found[:_MAX_MOUNTS]:
        yield Doing(what=f"asking the filesystem {mount.point} ({mount.kind}) for its free space")
        yield from parts("storage", filesystem(root, mount))
    if len(found) > _MAX_MOUNTS:
        why = f"{len(found)} filesystems are mounted, {_MAX_MOUNTS} were looked at"
        yield unsupported("storage.further_filesystems", why, "filesystems")


def _disk(root: str, disk: str) -> Iterator[Result]:
    base, prefix = f"{_BLOCK}/{disk}", f"storage.{disk}."
    how = f"list {_BLOCK}"
    yield measured(f"{prefix}present", True, how=how, better=Better.SAME, tolerance=0.0, device=disk)
    yield from read_places(
        root,
        [
            Place(name="size_bytes", path=f"{base}/size", unit="bytes", parse=lambda t: int(t) * 512),
            Place(name="rotational", path=f"{base}/queue/rotational", parse=lambda t: t == "1"),
            Place(name="scheduler", path=f"{base}/queue/scheduler", parse=_scheduler),
            Place(name="read_ahead_bytes", path=f"{base}/queue/read_ahead_kb", unit="bytes", parse=_kib),
            Place(name="requests", path=f"{base}/queue/nr_requests"),
            Place(name="block_bytes", path=f"{base}/queue/logical_block_size", unit="bytes"),
            Place(name="physical_block_bytes", path=f"{base}/queue/physical_block_size", unit="bytes"),
            Place(name="write_cache", path=f"{base}/queue/write_cache", parse=whole),
            Place(name="largest_request_bytes", path=f"{base}/queue/max_sectors_kb", unit="bytes", parse=_kib),
            Place(name="read_only", path=f"{base}/ro", parse=lambda t: t == "1"),
            Place(name="model", path=f"{base}/device/model", parse=whole),
            Place(name="firmware", path=f"{base}/device/firmware_rev", parse=whole),
            Place(
                name="io_errors", path=f"{base}/device/ioerr_cnt", unit="errors", parse=_any_base, better=Better.LOWER
            ),
            Place(name="in_flight", path=f"{base}/inflight", parse=whole, better=Better.ANY),
        ],
        prefix=prefix,
        device=disk,
    )  # fmt: skip
    yield from _live(root, f"{base}/device/state", prefix, disk)
    yield from _waits(root, base, prefix, disk)


def _kib(text: str) -> int:
    return int(text) * 1024


def _any_base(text: str) -> int:
    return int(text, 0)


def _scheduler(text: str) -> str:
    return text.partition("[")[2].partition("]")[0] or text


def _live(root: str, path: str, prefix: str, device: str) -> Iterator[Result]:
    text = text_of(root, path)
    if text is None:
        yield unsupported(f"{prefix}state_is_live", f"{path} is not there", device=device)
    else:
        yield measured(f"{prefix}state_is_live", text in ("running", "live"), how=f"read {path}: {text}", device=device)


def _waits(root: str, base: str, prefix: str, disk: str) -> Iterator[Result]:
    """Mean time of a request since the machine started."""
    cells = (text_of(root, f"{base}/stat") or "").split()
    for way, count, ticks in (("read", 0, 3), ("write", 4, 7)):
        name = f"{prefix}mean_{way}_s"
        if len(cells) > ticks and int(cells[count]):
            mean = int(cells[ticks]) / int(cells[count]) / 1000
            yield measured(name, mean, "s", how=f"read {base}/stat, since the machine started", device=disk)
        else:
            yield unsupported(name, f"no {way} has been counted", "s", device=disk)


def _nvme(root: str, name: str) -> Iterator[Result]:
    base, prefix = f"/sys/class/nvme/{name}", f"storage.{name}."
    yield measured(
        f"{prefix}present", True, how="list /sys/class/nvme", better=Better.SAME, tolerance=0.0, device=name
    )  # fmt: skip
    yield read_place(root, Place(name=f"{prefix}model", path=f"{base}/model", parse=whole), device=name)
    yield read_place(root, Place(name=f"{prefix}firmware", path=f"{base}/firmware_rev", parse=whole), device=name)
    yield read_place(root, Place(name=f"{prefix}transport", path=f"{base}/transport", parse=whole), device=name)
    yield from _live(root, f"{base}/state", prefix, name)


def mounts(root: str) -> list[Mount]:
    """Filesystems that hold files, each once (the first place where it is mounted)."""
    found: dict[str, tuple[str, Mount]] = {}
    for line in (text_of(root, "/proc/self/mountinfo") or "").splitlines():
        left, _, right = line.partition(" - ")
        cells, more = left.split(), right.split()
        if len(cells) < 6 or len(more) < 3 or more[0] in _NOT_STORAGE:
            continue
        point = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), cells[4])  # the kernel writes " " as \040
        mount = Mount(point=point, kind=more[0], source=more[1], options=cells[5], super_options=more[2])
        found[point] = (cells[2], mount)  # what is mounted last on a point hides the others
    by_device: dict[str, Mount] = {}
    for device, mount in found.values():
        by_device.setdefault(device, mount)
    return list(by_device.values())


def filesystem(root: str, mount: Mount) -> Iterator[Result]:
    """Also for `light`, which leaves out remote ones: this call can block for ever."""
    prefix = f"storage.{mount.point}."
    yield measured(
        f"{prefix}kind", mount.kind, how="read /proc/self/mountinfo", better=Better.SAME, device=mount.point
    )  # fmt: skip
    yield measured(f"{prefix}source", mount.source, how="read /proc/self/mountinfo", device=mount.point)
    yield measured(
        f"{prefix}options", mount.options, how="read /proc/self/mountinfo", better=Better.SAME, device=mount.point
    )  # fmt: skip
    yield _remounted(mount, prefix)
    try:
        stat = os.statvfs(under(root, mount.point))
    except PermissionError:
        yield unsupported(f"{prefix}reachable", "this user may not look at it", device=mount.point)
        return
    except OSError as error:
        yield Result(
            name=f"{prefix}reachable", value=False, verdict=Judgement.BAD, device=mount.point, how="statvfs",
            why=f"{mount.point} ({mount.kind} of {mount.source}): {error.strerror or error}",
        )  # fmt: skip
        return
    how = f"statvfs {mount.point}"
    yield measured(f"{prefix}reachable", True, how=how, device=mount.point)
    yield measured(
        f"{prefix}size_bytes", stat.f_blocks * stat.f_frsize, "bytes", how=how, better=Better.HIGHER, device=mount.point
    )  # fmt: skip
    yield measured(f"{prefix}available_bytes", stat.f_bavail * stat.f_frsize, "bytes", how=how, device=mount.point)
    if "ro" in mount.options.split(","):
        return  # images are full by nature
    for name, used, total in (
        ("used_ratio", stat.f_blocks - stat.f_bfree, stat.f_blocks - stat.f_bfree + stat.f_bavail),
        ("inodes_used_ratio", stat.f_files - stat.f_ffree, stat.f_files),
    ):
        if total:
            yield measured(f"{prefix}{name}", used / total, "ratio", how=how, device=mount.point)
        else:
            yield unsupported(f"{prefix}{name}", "the filesystem has no such limit", "ratio", device=mount.point)


def _remounted(mount: Mount, prefix: str) -> Result:
    """Mounted to be written (mount option rw), and read-only underneath: what ext4 and others do after errors."""
    asked, now = mount.options.split(","), mount.super_options.split(",")
    is_remounted = ("rw" in asked and "ro" in now) or "emergency_ro" in now
    how = "mount options and superblock options in /proc/self/mountinfo"
    return measured(f"{prefix}remounted_read_only", is_remounted, how=how, device=mount.point)
