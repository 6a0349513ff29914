"""Whether the kernel's out-of-memory killer ended a process, or another process sent SIGKILL.

There are three sources: the `oom_kill` counter of the process's own memory cgroup (v1 memory.oom_control, v2
memory.events), the machine's counter in /proc/vmstat, and the kernel log, which names the victim. The log is the best
source if readable; a counter that did not move proves that there was no kill. If no source is readable, the answer is
None, which the caller must treat as "unknown", not as "no".
"""

import os
import re
import time
from pathlib import Path

import msgspec

from everstep.linux import proc
from everstep.model.facts import OomEvidence

_LOG_WAIT_S = 0.05
"""The kernel sends the signal shortly before it writes its line. This wait is used only if a counter shows a kill."""

_VICTIM = re.compile(r"Killed process (?P<pid>\d+) \(")
_OUT_OF_MEMORY = re.compile(r"[Oo]ut of memory|oom-kill|oom_reaper")
_UNLIMITED = 1 << 60


class MemoryCgroup(msgspec.Struct, frozen=True, kw_only=True):
    """The memory cgroup of a process, as the filesystem shows it."""

    version: int  # 1 or 2
    root: Path
    path: Path

    def num_kills(self) -> int | None:
        """Number of OOM kills in this cgroup; None if unknown."""
        name = "memory.oom_control" if self.version == 1 else "memory.events"
        return _field(self.path / name, "oom_kill")

    def room_bytes(self, folder: Path) -> int | None:
        """Bytes until the limit of `folder`; None without a limit."""
        names = (
            ("memory.limit_in_bytes", "memory.usage_in_bytes")
            if self.version == 1
            else ("memory.max", "memory.current")
        )
        try:
            limit, usage = (folder / names[0]).read_text().strip(), int((folder / names[1]).read_text())
        except (OSError, ValueError):
            return None
        if not limit.isdigit() or int(limit) >= _UNLIMITED:
            return None
        return max(0, int(limit) - usage + _reclaimable(folder))

    @property
    def counter_name(self) -> str:
        return "cgroup memory.oom_control oom_kill" if self.version == 1 else "cgroup memory.events oom_kill"


def memory_cgroup(pid: int) -> MemoryCgroup | None:
    """The cgroup that limits the memory of `pid` now; None if unknown."""
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
        mounts = Path("/proc/self/mounts").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            return _located(1, _mount_of(mounts, "cgroup", "memory"), path)
    for line in lines:
        if line.startswith("0::"):
            return _located(2, _mount_of(mounts, "cgroup2", ""), line[3:])
    return None


class KernelLog:
    """The lines of /dev/kmsg from now on. It never waits; one read returns one record."""

    def __init__(self, path: str = "/dev/kmsg") -> None:
        self._lines: list[str] = []
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.lseek(self._fd, 0, os.SEEK_END)
        except OSError:
            self._fd = -1

    @property
    def is_readable(self) -> bool:
        return self._fd >= 0

    def victim_line(self, pid: int) -> str:
        """The line that reports that `pid` was killed for lack of memory; empty if there is none so far."""
        self._read()
        for line in reversed(self._lines):
            match = _VICTIM.search(line)
            if match is not None and int(match["pid"]) == pid:
                return line
        return ""

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _read(self) -> None:
        while self._fd >= 0:
            try:
                record = os.read(self._fd, 8192)
            except BlockingIOError:
                return
            except BrokenPipeError:
                continue  # records were overwritten before this read; the next read continues after the gap
            except OSError:
                self.close()
                return
            if not record:
                return
            message = parse_record(record)
            if _VICTIM.search(message) or _OUT_OF_MEMORY.search(message):
                self._lines.append(message)
                del self._lines[:-200]


def parse_record(record: bytes) -> str:
    """The text of a /dev/kmsg record "prio,seq,usec,flags[,...];text\\n KEY=value\\n..."; empty for anything else."""
    head, separator, rest = record.partition(b";")
    if not separator or not head.split(b",")[0].isdigit():
        return ""
    return rest.split(b"\n", 1)[0].decode("utf-8", "replace")


class OomWatch:
    """Follows one process from its start: its cgroup, and the values of the counters at that time."""

    def __init__(self, pid: int, log: KernelLog) -> None:
        self._pid = pid
        self._log = log
        self._cgroup: MemoryCgroup | None = None
        self._kills_before: int | None = None
        self._machine_before = _machine_kills()
        self.refresh()

    def refresh(self) -> None:
        """Look up the process's cgroup again. Call it while the process is alive: a dead process has none."""
        cgroup = memory_cgroup(self._pid)
        if cgroup is not None and cgroup != self._cgroup:
            self._cgroup = cgroup
            self._kills_before = cgroup.num_kills()

    def evidence(self, child: int | None = None) -> OomEvidence | None:
        """Evidence that the kernel sent the SIGKILL that ended the process or a child of it; None if it did not."""
        before, now = self._kills_before, self._cgroup.num_kills() if self._cgroup is not None else None
        counted = before is not None and now is not None
        struck = counted and now != before
        machine_now = _machine_kills()
        machine_struck = machine_now is None or machine_now != self._machine_before
        if not struck and not machine_struck:
            return None  # no process was killed on the whole machine
        line = self._await_line(child or self._pid) if self._log.is_readable else ""
        if line:
            return OomEvidence(source="kernel log", line=line)
        if struck and self._cgroup is not None and not self._log.is_readable:
            return OomEvidence(source=f"{self._cgroup.counter_name} {before} -> {now}")
        if struck and self._cgroup is not None and proc.is_in_pid_namespace():
            return OomEvidence(source=f"{self._cgroup.counter_name} {before} -> {now}")
        return None

    def _await_line(self, pid: int) -> str:
        deadline = time.monotonic() + _LOG_WAIT_S
        while True:
            line = self._log.victim_line(pid)
            if line or time.monotonic() > deadline:
                return line
            time.sleep(0.002)


def _machine_kills() -> int | None:
    return _field(Path("/proc/vmstat"), "oom_kill")


def _field(path: Path, name: str) -> int | None:
    try:
        for line in path.read_text().splitlines():
            words = line.split()
            if len(words) == 2 and words[0] == name:
                return int(words[1])
    except (OSError, ValueError):
        return None
    return None


def _reclaimable(folder: Path) -> int:
    """Page cache counts as used, but the kernel frees it on demand."""
    return _field(folder / "memory.stat", "total_inactive_file") or _field(folder / "memory.stat", "inactive_file") or 0


def _mount_of(mounts: list[str], kind: str, option: str) -> Path | None:
    for mount in mounts:
        words = mount.split()
        if len(words) > 3 and words[2] == kind and (not option or option in words[3].split(",")):
            return Path(words[1])
    return None


def _located(version: int, root: Path | None, path: str) -> MemoryCgroup | None:
    """In a container the path may be the host's while the mount shows our part of the tree: then use the root."""
    if root is None:
        return None
    full = root / path.lstrip("/")
    return MemoryCgroup(version=version, root=root, path=full if full.is_dir() else root)
