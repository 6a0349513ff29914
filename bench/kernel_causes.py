"""Does the kernel's view (eBPF) name what holds a process up? Real causes, ten times each, and each without its cause.

    sudo python bench/kernel_causes.py [--runs 10] [--only burner,flock]

For each cause a victim runs as it would in a job; the cause begins, and ends again. Right: within the limit the
sentence of the victim has the class and the culprit. The control: after the cause has ended, a window without both.
It needs root, BTF, loop devices, FUSE and version 1 cgroups (`cpu`, `blkio`, `memory`).
"""

import argparse
import contextlib
import ctypes
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from everstep.analyzer.slowness.off_cpu import KernelView, says

LIMIT_S = 30.0
WINDOW_S = 2.0
CGROUPS = Path("/sys/fs/cgroup")
SPIN = "while True: pass"
RT_SPIN = """
while True:
    end = time.monotonic() + 0.03
    while time.monotonic() < end: pass
    time.sleep(0.03)
"""
RT = "os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))\nimport time\n"

Begin = Callable[[Path, int], contextlib.AbstractContextManager[tuple[str, ...]]]
"""Begins the cause of a victim (folder, pid); gives words that the sentence has to have, and ends it."""


class Cause(msgspec.Struct, frozen=True):
    name: str
    victim: str  # program; argv[1]: the folder
    begin: Begin
    setting: Callable[[Path], contextlib.AbstractContextManager[None]] = lambda folder: contextlib.nullcontext()


def python(code: str, *argv: object, **options: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", code, *map(str, argv)], **options)  # type: ignore[call-overload]


@contextlib.contextmanager
def ended(process: subprocess.Popen[bytes]) -> Iterator[int]:
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def burners(pid: int, code: str = SPIN, number: int = 1) -> Iterator[tuple[str, ...]]:
    core = f"import os; os.sched_setaffinity(0, {os.sched_getaffinity(pid)})\n"
    with contextlib.ExitStack() as stack:
        pids = [stack.enter_context(ended(python(core + code))) for _ in range(number)]
        yield "ready and not scheduled", *(f"(pid {pid})" for pid in pids)


@contextlib.contextmanager
def group(controller: str, pid: int, **limits: int) -> Iterator[tuple[str, ...]]:
    folder = CGROUPS / controller / f"everstep-bench-{os.getpid()}"
    folder.mkdir()
    try:
        for name, value in limits.items():
            (folder / name.replace("__", ".")).write_text(str(value))
        (folder / "cgroup.procs").write_text(str(pid))
        yield ("CPU quota",) if controller == "cpu" else ("freeing memory, at the limit",)
    finally:
        with contextlib.suppress(OSError):
            (CGROUPS / controller / "cgroup.procs").write_text(str(pid))
        for _ in range(50):
            with contextlib.suppress(OSError):
                folder.rmdir()
                break
            time.sleep(0.1)


HOLDER = """
import fcntl, sys, time
file = open(sys.argv[1] + "/lock", "w")
lock = fcntl.flock if sys.argv[2] == "flock" else fcntl.lockf
while True:
    lock(file, 2)
    time.sleep(float(sys.argv[3]))
    lock(file, 8)
    time.sleep(0.02)
"""
USER = HOLDER.replace("float(sys.argv[3])", "0")


@contextlib.contextmanager
def held(folder: Path, how: str) -> Iterator[tuple[str, ...]]:
    with ended(python(HOLDER, folder, how, 0.4)) as pid:
        yield "for a file lock", f"{folder}/lock", f"(pid {pid})"


SHARED = """
import ctypes, mmap, os, sys, time
libc = ctypes.CDLL(None)
file = os.open(sys.argv[1] + "/shared", os.O_RDWR | os.O_CREAT)
os.ftruncate(file, 4096)
word = ctypes.c_char.from_buffer(mmap.mmap(file, 4096))
lock = ctypes.byref(word)
if sys.argv[2] == "make":
    libc.sem_init(lock, 1, 1)
while True:
    libc.sem_wait(lock)
    time.sleep(float(sys.argv[3]))
    libc.sem_post(lock)
    time.sleep(0.02)
"""


@contextlib.contextmanager
def semaphore(folder: Path) -> Iterator[tuple[str, ...]]:
    with ended(python(SHARED, folder, "use", 0.4)) as pid:
        try:
            yield "for a lock (futex)", f"(pid {pid})"
        finally:
            os.kill(pid, 19)
            time.sleep(0.5)  # it may hold the lock: then the victim stays, and what follows is its sleep of the cause


@contextlib.contextmanager
def disk(folder: Path) -> Iterator[None]:
    """A filesystem of its own on a loop device."""
    image, mount = folder / "image", folder / "disk"
    mount.mkdir()
    with image.open("wb") as file:
        file.truncate(96 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", image], check=True)
    subprocess.run(["mount", "-o", "loop", image, mount], check=True)
    (mount / "data").write_bytes(os.urandom(8 << 20))
    os.sync()
    try:
        yield
    finally:
        for _ in range(50):
            if subprocess.run(["umount", mount], stderr=subprocess.DEVNULL, check=False).returncode == 0:
                break
            time.sleep(0.1)


@contextlib.contextmanager
def throttled(folder: Path, pid: int, words: tuple[str, ...], which: str, rate: int) -> Iterator[tuple[str, ...]]:
    number = (folder / "disk").stat().st_dev
    own = CGROUPS / "blkio" / f"everstep-bench-{os.getpid()}"
    own.mkdir()
    device = f"{os.major(number)}:{os.minor(number)}"
    try:
        (own / f"blkio.throttle.{which}_bps_device").write_text(f"{device} {rate}")
        (own / "cgroup.procs").write_text(str(pid))
        yield words
    finally:
        (own / f"blkio.throttle.{which}_bps_device").write_text(f"{device} 0")
        with contextlib.suppress(OSError):
            (CGROUPS / "blkio" / "cgroup.procs").write_text(str(pid))
        time.sleep(0.3)
        with contextlib.suppress(OSError):
            own.rmdir()


@contextlib.contextmanager
def frozen(folder: Path) -> Iterator[tuple[str, ...]]:
    mount = folder / "disk"
    stop = f"while fsfreeze -f {mount}; do sleep 0.4; fsfreeze -u {mount}; sleep 0.02; done"
    with subprocess.Popen(["sh", "-c", stop], start_new_session=True) as shell:
        try:
            yield "slept", "in write", f"{mount}/out"
        finally:
            os.killpg(shell.pid, 9)
            shell.wait()
            time.sleep(0.1)
            subprocess.run(["fsfreeze", "-u", mount], stderr=subprocess.DEVNULL, check=False)


FUSE = Path(__file__).with_name("kernel_fuse.py")


@contextlib.contextmanager
def slow_server(folder: Path) -> Iterator[None]:
    """A FUSE file system that answers at once, or late while the file `slow` names the request."""
    mount = folder / "served"
    mount.mkdir()
    with ended(subprocess.Popen([sys.executable, FUSE, mount, folder / "slow"], stdout=subprocess.PIPE)):
        time.sleep(0.5)
        try:
            yield
        finally:
            ctypes.CDLL(None).umount2(str(mount).encode(), 2)


@contextlib.contextmanager
def answers_late(folder: Path, request: str, words: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    (folder / "slow").write_text(request)
    try:
        yield words
    finally:
        (folder / "slow").unlink()


PINNED = f"import os; os.sched_setaffinity(0, {{{max(os.sched_getaffinity(0))}}})\n"
SYNC = """
import os, sys, time
file = os.open(sys.argv[1] + "/disk/out", os.O_CREAT | os.O_RDWR)
while True:
    os.pwrite(file, os.urandom(1 << 18), 0)
    os.fsync(file)
    time.sleep(0.3)
"""
WRITE = SYNC.replace("    os.fsync(file)\n", "")
READ = """
import os, sys, time
file = os.open(sys.argv[1] + "/disk/data", os.O_RDONLY)
while True:
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    os.pread(file, 1 << 18, 0)
    time.sleep(0.05)
"""
FAULT = """
import os, sys, time, mmap
file = os.open(sys.argv[1] + "/disk/data", os.O_RDONLY)
while True:
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    pages = mmap.mmap(file, 1 << 20, prot=mmap.PROT_READ)
    pages.madvise(mmap.MADV_RANDOM)
    sum(pages[at] for at in range(0, 1 << 20, 1 << 16))
    pages.close()
    time.sleep(0.05)
"""
SERVED = """
import os, sys, time
while True:
    file = os.open(sys.argv[1] + "/served/file", os.O_RDONLY)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    os.pread(file, 4096, 0)
    os.close(file)
    time.sleep(0.05)
"""
MEMORY = """
import sys
while True:
    with open(sys.argv[1] + "/disk/data", "rb") as file:
        while file.read(1 << 20):
            pass
    with open(sys.argv[1] + "/disk/more", "wb") as file:
        for _ in range(24):
            file.write(bytes(1 << 20))
"""


def slow_disk(words: tuple[str, ...], which: str, rate: int, on: str = "/dev/loop") -> Begin:
    return lambda folder, pid: throttled(folder, pid, (*words, on), which, rate)


def late(request: str, *words: str) -> Begin:
    return lambda folder, pid: answers_late(folder, request, words)


MAPPED = ("pages of a mapped file",)
CAUSES = (
    Cause("burner", PINNED + SPIN, lambda folder, pid: burners(pid)),
    Cause("four burners", PINNED + SPIN, lambda folder, pid: burners(pid, number=4)),
    Cause("real-time burner", PINNED + SPIN, lambda folder, pid: burners(pid, RT + RT_SPIN)),
    Cause("cgroup quota", PINNED + SPIN, lambda folder, pid: group("cpu", pid, cpu__cfs_quota_us=10_000)),
    Cause("flock", USER, lambda folder, pid: held(folder, "flock")),
    Cause("fcntl lock", USER, lambda folder, pid: held(folder, "fcntl")),
    Cause("futex of another process", SHARED, lambda folder, pid: semaphore(folder)),
    Cause("fsync on a throttled disk", SYNC, slow_disk(("in fsync of", "/disk/out"), "write", 1 << 19), disk),
    Cause("read on a throttled disk", READ, slow_disk(("in read of", "/disk/data"), "read", 1 << 19), disk),
    Cause("mapped file on a throttled disk", FAULT, slow_disk(MAPPED, "read", 1 << 18, ""), disk),
    Cause("frozen filesystem", WRITE, lambda folder, pid: frozen(folder), disk),
    Cause("slow server, read", SERVED, late("read", "in read of", "/served/file"), slow_server),
    Cause("slow server, open", SERVED, late("open", "in open"), slow_server),
    Cause("memory limit", MEMORY, lambda folder, pid: group("memory", pid, memory__limit_in_bytes=20 << 20), disk),
)


def names(line: str, words: tuple[str, ...]) -> bool:
    """All words; of several pids one."""
    pids = [word for word in words if word.startswith("(pid ")]
    others = [word for word in words if word not in pids]
    return all(word in line for word in others) and (not pids or any(pid in line for pid in pids))


class Observer:
    def __init__(self, victim: int) -> None:
        self._victim = victim
        self._process = subprocess.Popen(
            [sys.executable, "-m", "everstep.probes.ebpf.observer", str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.look()

    def look(self) -> tuple[str, ...]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"pids": [self._victim]}).encode() + b"\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        if "view" not in answer:
            raise SystemExit(answer.get("why_not", "no answer"))
        return says(msgspec.convert(answer["view"], KernelView), self._victim, {self._victim}, {self._victim})

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


def once(cause: Cause) -> tuple[float | None, str, str]:
    """Seconds until it was named, or None; what was said; what was said afterwards that must not be."""
    with tempfile.TemporaryDirectory(prefix="kernel-causes-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        stack.enter_context(cause.setting(folder))
        argv = {SHARED: ("make", 0), USER: ("flock" if cause.name == "flock" else "fcntl", 0)}.get(cause.victim, ())
        victim = stack.enter_context(ended(python(cause.victim, folder, *argv)))
        time.sleep(0.5)
        observer = Observer(victim)
        stack.callback(observer.close)
        took_s, said = None, ""
        with cause.begin(folder, victim) as words:
            begun = time.monotonic()
            while took_s is None and time.monotonic() - begun < LIMIT_S:
                time.sleep(WINDOW_S)
                lines = observer.look()
                said = " | ".join(lines) or said
                if any(names(line, words) for line in lines):
                    took_s = time.monotonic() - begun
        time.sleep(0.5)
        observer.look()  # what began before the end
        time.sleep(WINDOW_S)
        false = [line for line in observer.look() if names(line, words)]
        return took_s, said, " | ".join(false)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--only", default="", help="parts of names, by commas")
    parser.add_argument("-v", "--verbose", action="store_true")
    options = parser.parse_args()
    if shutil.which("mkfs.ext4") is None:
        raise SystemExit("mkfs.ext4 is missing")
    chosen = [c for c in CAUSES if not options.only or any(part in c.name for part in options.only.split(","))]
    print(f"{'cause':34} {'named':>8} {'slowest':>8} {'afterwards':>10}")
    for cause in chosen:
        try:
            found = [once(cause) for _ in range(options.runs)]
        except (OSError, subprocess.CalledProcessError) as error:
            print(f"{cause.name:34} not measured: {error}")
            continue
        named = [took_s for took_s, _, _ in found if took_s is not None]
        slowest = f"{max(named):.1f} s" if named else "-"
        false = sum(bool(text) for _, _, text in found)
        print(f"{cause.name:34} {len(named):4} of {len(found)} {slowest:>7} {false:10}", flush=True)
        if options.verbose or len(named) < len(found) or false:
            for took_s, said, after in found:
                print(
                    f"    {took_s if took_s is None else round(took_s, 1)}: {said or '-'}; afterwards: {after or '-'}"
                )


if __name__ == "__main__":
    main()
