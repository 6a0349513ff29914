"""The threads that torch communicates with, when a process group or the program is over.

DDP's last collective may be done before the thread that did it has let go of it, and letting go takes the GIL. The
thread that frees a process group holds the GIL and waits for that thread: with torch 2.13 neither ever continues, seen
in four of 18 short runs of two ranks on a busy machine. And a thread that asks for the GIL once the interpreter is
being taken down is ended by it, in the middle of a destructor, and the process aborts ("terminate called without an
active exception"): one short run in ten, under torchrun as well.
"""

import os
import time

PREFIX = "pt_"
"""Prefix of the names that torch gives its threads: pt_gloo_runloop, pt_nccl_watchdg ..."""

LIMIT_S = 0.25
LOOK_S = 0.001
LOOKS = 2
"""How many looks in a row must find all of them asleep. The GIL is free between two: a thread that waited for it had
it."""

_TASKS = "/proc/self/task"


def let_go() -> None:
    """Wait until these threads have let go of what they did; not at all where there are none."""
    threads = [number for number in _tasks() if _read(number, "comm").startswith(PREFIX)]
    ends_at = time.monotonic() + LIMIT_S
    asleep = 0
    while threads and asleep < LOOKS and time.monotonic() < ends_at:
        time.sleep(LOOK_S)
        asleep = asleep + 1 if not any(map(_is_at_work, threads)) else 0


def _tasks() -> list[str]:
    try:
        return os.listdir(_TASKS)
    except OSError:
        return []  # no /proc: nothing is known, and nothing waited for


def _read(thread: str, name: str) -> str:
    try:
        with open(f"{_TASKS}/{thread}/{name}", errors="replace") as file:
            return file.read()
    except OSError:
        return ""  # it has ended


def _is_at_work(thread: str) -> bool:
    return _read(thread, "stat").rpartition(")")[2][1:2] in ("R", "D")
