"""Openers of a wait within a process: its other threads and its children, and what those wait for themselves.

Pure. A lock, a queue, a pipe between own processes is opened by a thread or process of the same rank. It is hopeless
only if none of them could: all are in locks too, are stopped, or are known to serve no lock. If one of them runs,
sleeps, or waits for something outside, the main thread inherits that wait. What is unknown counts as able to.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from everstep.analyzer.observations.clusters import Activity, activity_of
from everstep.analyzer.observations.records import Hold, Thread, ThreadWait

WITHIN = (Hold.LOCK, Hold.OWN)
"""Holds that a thread or process of the same rank has to open."""

_NEVER = (Hold.LOCK, Hold.OWN, Hold.STOPPED, Hold.ENDED)
"""A thread held like this opens nothing for others before it is released itself."""

_SERVANTS = (
    "gloo_", "pt_gloo", "pt_tcpstore", "pt_nccl", "pt_elastic", "nccl", "iou-", "jemalloc", "mimalloc", "everstep-",
)  # fmt: skip
"""Threads of libraries, by the kernel's name of them: they work for the rank on request, and release no locks."""

_WORKERS = ("pt_autograd", "cuda")
"""The same while they wait; when one of them runs, the rank computes."""

_SERVANT_FILES = (
    "everstep/worker/", "tqdm/_monitor.py", "torch/utils/data/_utils/pin_memory.py", "torch/_inductor/compile_worker/",
    "multiprocessing/resource_sharer.py", "multiprocessing/forkserver.py", "multiprocessing/resource_tracker.py",
    "tensorboard/summary/writer/event_file_writer.py",
)  # fmt: skip
"""The same by where a Python thread stands: they write what they are given, or hand on what a child brings."""


ACCEPTS = "waits for a peer to connect"
"""What a thread that serves others does, as evidence says it."""

ASKS_S = 10.0

_TIMED = "waits with a time limit"
_DOES = {Hold.NOTHING: "works", Hold.TIMED: _TIMED, Hold.DISK: "waits for a disk"}


class Opener(msgspec.Struct, frozen=True, kw_only=True):
    """A thread or process that could end the wait; its own wait is inherited."""

    works: bool  # it runs; it does not only wait
    does: str  # "waits for a socket"
    who: str = ""  # "its process", "its thread writer"; empty: the main thread goes on by itself
    left_s: float | None = None
    sleeps: bool = False  # on a timer: nothing wakes it before

    @property
    def what(self) -> str:
        return f"waits for {self.who}, which {self.does}" if self.who else self.does


def find_opener(
    main: ThreadWait, waits: Sequence[ThreadWait], threads: Mapping[int, Thread], *, polls: bool = False
) -> Opener | None:
    """The opener for a main thread that waits within its rank; None: none could.

    `threads`: Python's, by the kernel's number, as far as known. `polls`: its own time limit is that of a loop which
    asks the others again and again."""
    if main.hold is Hold.TIMED and not polls:
        return Opener(works=False, does=_TIMED, left_s=main.left_s)
    if main.moved and not polls:
        return Opener(works=True, does="wakes up now and then")
    is_held = _is_lock_held(main, threads)
    found = [
        opener
        for wait in waits
        if wait.tid != main.tid and (opener := _opener(wait, main, threads.get(wait.tid), is_held)) is not None
    ]
    return max(found, key=_strength, default=None)


def _strength(opener: Opener) -> tuple[bool, float]:
    return opener.works, -(opener.left_s or 0.0)


def _is_lock_held(main: ThreadWait, threads: Mapping[int, Thread]) -> bool:
    """Whether the main thread has the interpreter's lock: then no other thread of Python can do anything."""
    own = threads.get(main.tid)
    return own is not None and own.owns_gil and not own.active


def _opener(wait: ThreadWait, main: ThreadWait, thread: Thread | None, is_held: bool) -> Opener | None:
    if is_servant(wait, thread, main.pid):
        return None
    asks = _asks_again(wait)
    moves = wait.moved and (wait.hold in WITHIN or asks) and not _asks_for_work(thread)
    if (wait.hold in _NEVER or asks) and not moves:
        return None
    if is_held and wait.pid == main.pid and thread is not None:
        return None
    does = "wakes up now and then" if moves else wait.what or _DOES.get(wait.hold, "may do something")
    if thread is not None and activity_of(thread) is Activity.COLLECTIVE:
        does = "waits for the other ranks"
    works = moves or wait.hold is Hold.NOTHING
    return Opener(
        works=works, does=does, who=_who(wait, main, thread), left_s=wait.left_s, sleeps=wait.hold is Hold.TIMER
    )


def is_servant(wait: ThreadWait, thread: Thread | None, main_pid: int) -> bool:
    """It is known to open nothing for others."""
    if wait.what == ACCEPTS and wait.pid != main_pid and wait.tid != wait.pid:
        return True  # it hands out what a child of the rank shares
    if thread is None:
        is_idle = wait.name.startswith(_WORKERS) and wait.hold is not Hold.NOTHING
        return wait.tid != wait.pid and (is_idle or wait.name.startswith(_SERVANTS))
    if thread.name.startswith("everstep-"):
        return True
    return any(part in frame.file for frame in thread.frames for part in _SERVANT_FILES)


def _asks_again(wait: ThreadWait) -> bool:
    """A loader's process, or a thread that serves others, asks its own pipe every few seconds for work."""
    return wait.hold is Hold.TIMED and wait.left_s is not None and wait.left_s <= ASKS_S


def _asks_for_work(thread: Thread | None) -> bool:
    """A loader's process without work looks every few seconds whether its rank still lives."""
    return thread is not None and any("torch/utils/data/_utils/worker.py" in f.file for f in thread.frames)


def _who(wait: ThreadWait, main: ThreadWait, thread: Thread | None) -> str:
    if wait.pid != main.pid:
        return "its process"
    return f"its thread {((thread.name if thread is not None else '') or wait.name)[:40]}".rstrip()


def takes_part(waits: Iterable[ThreadWait], threads: Mapping[int, Thread], main_tid: int) -> bool:
    """Whether another thread of the process waits for the other ranks: then that one trains, and the main thread waits
    for it."""
    return any(
        tid != main_tid
        and not is_servant(wait, threads[tid], main_tid)
        and activity_of(threads[tid]) is Activity.COLLECTIVE
        for wait in waits
        if (tid := wait.tid) in threads
    )
