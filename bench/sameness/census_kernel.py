"""What the kernel says of a process: identity, kin, limits, open files. For census_probe.py, and copied beside it.

Needs the standard library alone. Must not change what it looks at, and imports nothing at the start.
"""

import os


def read(path: str) -> str:
    with open(path, "rb") as file:  # noqa: PTH123
        return file.read().decode(errors="replace")


def process(_names: dict) -> dict[str, object]:  # type: ignore[type-arg]
    """As the kernel sees it, and who looks at it from outside."""
    found: dict[str, object] = {}
    kept = "Umask Uid Gid Groups SigIgn SigCgt SigBlk NoNewPrivs Seccomp CapEff CoreDumping THP_enabled TracerPid"
    for line in read("/proc/self/status").splitlines():
        name, _, value = line.partition(":")
        if name in kept.split():
            found[name] = value.strip()
    found["cmdline"] = read("/proc/self/cmdline").split("\0")
    found["comm"] = read("/proc/self/comm").strip()
    for name in ("exe", "root", "cwd"):
        found[name] = os.readlink(f"/proc/self/{name}")  # noqa: PTH115
    for name in ("coredump_filter", "oom_score_adj", "personality", "timerslack_ns", "cgroup"):
        try:
            found[name] = read(f"/proc/self/{name}").strip()
        except OSError as error:
            found[name] = type(error).__name__
    for name in os.listdir("/proc/self/ns"):  # noqa: PTH208
        found[f"namespace of the parent: {name}"] = os.readlink(f"/proc/self/ns/{name}") == os.readlink(  # noqa: PTH115
            f"/proc/{os.getppid()}/ns/{name}"
        )
    return found


def kin(_names: dict) -> dict[str, object]:  # type: ignore[type-arg]
    """Session, group, parent, children, terminal."""
    import ctypes

    pid, parent = os.getpid(), os.getppid()
    stat = read("/proc/self/stat").rpartition(")")[2].split()
    libc = ctypes.CDLL(None)
    held = ctypes.c_int(0)
    libc.prctl(2, ctypes.byref(held), 0, 0, 0)  # PR_GET_PDEATHSIG
    found: dict[str, object] = {"dies with its parent by signal": held.value}
    libc.prctl(37, ctypes.byref(held), 0, 0, 0)  # PR_GET_CHILD_SUBREAPER
    found["adopts orphans"] = held.value
    found["dumpable"] = libc.prctl(3, 0, 0, 0, 0)  # PR_GET_DUMPABLE
    found["pid as the kernel says"] = read("/proc/self/stat").split()[0] == str(pid)
    found["session of its own"] = os.getsid(0) == pid
    found["group of its own"] = os.getpgid(0) == pid
    found["session of the parent"] = os.getsid(0) == os.getsid(parent)
    found["terminal"] = stat[4]
    found["parent's comm"] = read(f"/proc/{parent}/comm").strip()
    found["children"] = sorted(_comm_of(each) for each in _children())
    return found


def _children() -> list[str]:
    found: list[str] = []
    for task in os.listdir("/proc/self/task"):  # noqa: PTH208
        found += read(f"/proc/self/task/{task}/children").split()
    return found


def _comm_of(pid: str) -> str:
    try:
        return read(f"/proc/{pid}/comm").strip()
    except OSError:
        return "(gone)"


def limits(_names: dict) -> dict[str, object]:  # type: ignore[type-arg]
    import resource

    names = [name for name in dir(resource) if name.startswith("RLIMIT_")]
    found: dict[str, object] = {name: resource.getrlimit(getattr(resource, name)) for name in names}
    found["nice"] = os.getpriority(os.PRIO_PROCESS, 0)
    found["affinity"] = sorted(os.sched_getaffinity(0))
    found["scheduler"] = (os.sched_getscheduler(0), os.sched_getparam(0).sched_priority)
    return found


def files(_names: dict) -> dict[str, object]:  # type: ignore[type-arg]
    """Standard streams by number; of the others the kinds, because one more shifts the numbers of all after it."""
    listing = os.open("/proc/self/fd", os.O_RDONLY | os.O_DIRECTORY)
    descriptors = sorted(int(name) for name in os.listdir(listing) if int(name) != listing)  # noqa: PTH208
    os.close(listing)
    kinds = {fd: _kind_of(fd) for fd in descriptors}
    found: dict[str, object] = {str(fd): kinds.get(fd, "closed") for fd in (0, 1, 2)}
    found["others"] = sorted(kind for fd, kind in kinds.items() if fd > 2 and kind)
    return found


def _kind_of(fd: int) -> str:
    """Empty: closed by now (the descriptor with which they were listed)."""
    import fcntl
    import stat

    try:
        target, mode = os.readlink(f"/proc/self/fd/{fd}"), os.fstat(fd).st_mode  # noqa: PTH115
        flags, status = fcntl.fcntl(fd, fcntl.F_GETFD), fcntl.fcntl(fd, fcntl.F_GETFL)
    except OSError:
        return ""
    kind = target if target.startswith("/dev/") else target.partition(":[")[0] if ":[" in target else "file"
    words = [kind, stat.filemode(mode)[0], ("read", "write", "read write", "?")[status & 3]]
    words += [name for name in ("O_APPEND", "O_NONBLOCK") if status & getattr(os, name)]
    return " ".join([*words, "cloexec" if flags & 1 else "inheritable"])
