"""The reason why a thread slept, from its system call and its kernel stack, and the path of the call's file.

Only sleeps with a culprit are reported: a file, a lock, memory; and a program's own sleep, which looks like waiting for
a peer from outside. Waiting for a peer or a pipe is normal and is not reported.
"""

import platform
import stat
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from pathlib import Path

from everstep.analyzer.slowness.off_cpu import FAULT, FILE_LOCK, FUTEX, SWAP, TIMER

_X86 = {
    "read": (0, 17, 19, 295, 40, 326, 78, 217),
    "write": (1, 18, 20, 296, 285, 76, 77),
    "fsync": (74, 75, 277, 306, 162, 26),
    "open": (2, 85, 257, 437),
    "stat": (4, 5, 6, 262, 332),
    "rename": (82, 264, 316),
    "unlink": (87, 263),
    "mkdir": (83, 258),
    "close": (3,),
    FILE_LOCK: (72, 73),
    FUTEX: (202, 455),
    TIMER: (35, 230),
}
_ARM64 = {
    "read": (63, 67, 65, 69, 71, 285, 61),
    "write": (64, 68, 66, 70, 47, 45, 46),
    "fsync": (82, 83, 84, 267, 81, 227),
    "open": (56, 437),
    "stat": (79, 80, 291),
    "rename": (38, 276),
    "unlink": (35,),
    "mkdir": (34,),
    "close": (57,),
    FILE_LOCK: (25, 32),
    FUTEX: (98, 455),
    TIMER: (101, 115),
}
_RELEASES = {"x86": (202, 454, 72, 73, 3, 60, 231), "arm64": (98, 454, 25, 32, 57, 93, 94)}
_ON_A_FILE = ("read", "write", "fsync", "close", FILE_LOCK)
_HAVE_PLACES = (stat.S_IFREG, stat.S_IFDIR, stat.S_IFBLK)
_STACKS = (
    (SWAP, ("do_swap_page", "swapin_readahead", "swap_cluster_readahead")),
    (FAULT, ("filemap_fault", "do_fault", "__do_fault", "do_read_fault")),
)
_TEXT = "tTwW"


class Places:
    """The kernel's functions, as far as needed. They are read at the first fault, because that takes 0.1 s."""

    def __init__(self, symbols: Path = Path("/proc/kallsyms"), machine: str = platform.machine()) -> None:
        self._symbols = symbols
        is_arm = machine in ("aarch64", "arm64")
        self._calls = {number: kind for kind, numbers in (_ARM64 if is_arm else _X86).items() for number in numbers}
        self._releasing = _RELEASES["arm64" if is_arm else "x86"]
        self._starts: array[int] | None = None
        self._kinds: dict[int, str] = {}  # start of a function -> what a thread that sleeps in it waits for

    def kind(self, frames: Iterable[int], syscall: int, mode: int) -> str:
        """Kind of a sleep; empty: not reported. Outside of a system call it is a fault, and the stack shows its
        kind."""
        if syscall < 0:
            found = {self._kind_at(frame) for frame in frames if frame}
            return next((kind for kind, _ in _STACKS if kind in found), "")
        kind = self._calls.get(syscall, "")
        if kind in _ON_A_FILE and mode and stat.S_IFMT(mode) not in _HAVE_PLACES:
            return ""
        return kind

    def told(self, num_calls: int) -> bytes:
        """For each system call number: 0: sleeps in it are not reported; 1: they are; 2: with the file of its first
        argument."""
        return bytes(1 + (kind in _ON_A_FILE) if (kind := self._calls.get(n)) else 0 for n in range(num_calls))

    @property
    def on_a_file(self) -> tuple[str, ...]:
        """Kinds whose system call has the file as its first argument."""
        return _ON_A_FILE

    def releases(self, syscall: int) -> bool:
        """Whether a caller of this system call may wake a thread on purpose. If not, a timer only interrupted it."""
        return syscall in self._releasing

    def _kind_at(self, address: int) -> str:
        if self._starts is None:
            self._starts = self._read()
        at = bisect_right(self._starts, address) - 1
        return self._kinds.get(self._starts[at], "") if at >= 0 else ""

    def _read(self) -> "array[int]":
        """Starts of functions; zeros or nothing if the kernel hides its addresses: then only the system call counts."""
        kinds = {name: kind for kind, names in _STACKS for name in names}
        starts = array("Q")
        try:
            with self._symbols.open() as lines:
                for line in lines:
                    words = line.split(None, 3)
                    if len(words) < 3 or words[1] not in _TEXT:
                        continue
                    starts.append(int(words[0], 16))
                    kind = kinds.get(words[2].partition(".")[0])
                    if kind is not None:
                        self._kinds[starts[-1]] = kind
        except (OSError, ValueError):
            return array("Q")
        self._kinds.pop(0, None)
        return array("Q", sorted(starts))


def full_path(pid: int, device: int, parts: Sequence[str], *, is_whole: bool, proc: Path = Path("/proc")) -> str:
    """`/data/run/step-40.pt (/dev/sda1)`. `parts`: the file's name, then its folders; as that process sees it."""
    if not parts:
        return ""
    inner = "/".join(reversed(parts))
    number = f"{device >> 20}:{device & 0xFFFFF}"
    try:
        lines = (proc / str(pid) / "mountinfo").read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    found = [words for words in (_mount(line, number) for line in lines) if words]
    # A bind mount shows a part of the filesystem: the file must be in it.
    fits = [each for each in found if _is_below(f"/{inner}", each[0], is_whole=is_whole)]
    if not fits:
        return inner
    root, point, source = max(fits, key=lambda each: (len(each[0]), -len(each[1])))
    shown = inner[len(root.strip("/")) :].lstrip("/") if is_whole else f".../{inner}"
    return f"{point.rstrip('/')}/{shown} ({source})"


def _mount(line: str, number: str) -> tuple[str, str, str] | None:
    """For the filesystem with this device number: the mounted part, the mount point and the source."""
    left, _, right = line.partition(" - ")
    words, source = left.split(), right.split()
    if len(words) < 5 or words[2] != number or len(source) < 2:
        return None
    return words[3], words[4], source[1]


def _is_below(path: str, root: str, *, is_whole: bool) -> bool:
    return root == "/" or (is_whole and f"{path}/".startswith(f"{root.rstrip('/')}/"))
