"""Whether a rank's main thread stands still, from stacks that py-spy takes from outside while all other signals are
silent.

It takes no stack itself: the agent runs py-spy (`command`) and passes the output (`parse`, `StackProbe.take`). Age
counts from the first of several stacks in a row at the same place, because there was no look before.
"""

import json
import os
import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from everstep.analyzer.observations.clusters import Activity, Signature, activity_of, main_thread, place_of, signature
from everstep.analyzer.observations.records import Frame, ProcessStack, Thread
from everstep.analyzer.reading.pickled import UnreadableError
from everstep.analyzer.reading.stacks import from_json

MIN_ROW = 4
"""Stacks at one place before it counts as standing still. With fewer, a healthy evaluation that is at its main function
three times in a row looks like a loop. With more, a real loop is found later."""

_COMPUTES = (Activity.UNKNOWN, Activity.BACKWARD, Activity.SAVING)
_DEBUGGERS = ("pdb.py", "bdb.py")
_DEBUGGER_PACKAGES = ("debugpy/", "pydevd", "ipdb/", "pudb/")


PY_SPY_SETTING = "EVERSTEP_PY_SPY"
"""Environment variable: `off`, or the program's path."""

_SPILLED_THREAD = re.compile(r"(?:Current thread|Thread) 0x([0-9a-f]+)(?: \[(.*)\])? \(most recent call first\):")
_SPILLED_FRAME = re.compile(r'  File "(.*)", line (\d{1,9}|\?\?\?) in (.*)')


def find_py_spy(env: Mapping[str, str] = os.environ) -> str | None:
    """Path of py-spy: from the environment, else beside the interpreter, else on PATH. None: off or not found."""
    setting = env.get(PY_SPY_SETTING, "")
    if setting:
        return None if setting == "off" else shutil.which(setting)
    return shutil.which("py-spy", path=str(Path(sys.executable).parent)) or shutil.which("py-spy")


def why_no_py_spy(env: Mapping[str, str] = os.environ) -> str:
    """The reason, as text for users, if `find_py_spy` found none."""
    setting = env.get(PY_SPY_SETTING, "")
    if setting:
        return f"py-spy is switched off ({PY_SPY_SETTING}={setting})" if setting == "off" else f"no program {setting}"
    return "py-spy is not installed beside this interpreter nor on PATH"


def command(py_spy: str, pid: int) -> list[str]:
    """The command line. Non-blocking: a stopped process cannot be read otherwise, and we never pause a rank."""
    return [py_spy, "dump", "--json", "--nonblocking", "--pid", str(pid)]


def parse(output: bytes, errors: bytes) -> tuple[list[object], str]:
    """Raw threads as py-spy lists them; or none, and the reason."""
    try:
        threads = json.loads(output)
    except (ValueError, RecursionError):
        lines = [line.strip() for line in errors.decode("utf-8", "replace").splitlines() if line.strip()]
        return [], " ".join(lines[:4])[:300] or "py-spy gave no stack"
    if not isinstance(threads, list) or not threads:
        return [], "py-spy lists no thread"
    return threads, ""


def parse_spill(text: str, pid: int, *, is_running: bool) -> list[object]:
    """Frames that faulthandler wrote, in py-spy's form, the main thread last. They are requested only if the rank's own
    sampler does not answer: then a thread holds the GIL, and that is almost always the main thread. `is_running`: as
    the kernel reports it."""
    threads: list[dict[str, object]] = []
    frames: list[object] = []
    for line in text.splitlines():
        thread, frame = _SPILLED_THREAD.match(line), _SPILLED_FRAME.match(line)
        if thread:
            frames = []
            threads.append({"pid": pid, "thread_id": int(thread[1], 16), "thread_name": thread[2], "frames": frames})
        elif frame and threads:
            number = int(frame[2]) if frame[2].isdigit() else 0
            frames.append({"name": frame[3], "filename": frame[1], "line": number})
    if threads:  # newest first
        threads[-1] |= {"thread_name": "MainThread", "active": is_running, "owns_gil": True}
    return [*threads]


def is_undecided(threads: list[object]) -> bool:
    """Whether the main thread is seen without the GIL, and may have released it for this moment only: it runs, or
    another thread does. Otherwise it is in native code, or waits."""
    try:
        processes = from_json(threads) if threads else []
    except UnreadableError:
        return False
    thread = main_thread(processes[0]) if processes else None
    if thread is None or activity_of(thread) not in (Activity.UNKNOWN, Activity.BLOCKED):
        return False
    return any(each.active for each in processes[0].threads)


class StackProbe:
    """The stacks of one rank since its other signals became silent.

    A stack that differs from the one before is a sign of life. So is native code without the GIL that is not a
    collective: that is how tensors are computed. Otherwise there are stacks in a row at one place that wait, or that
    hold the GIL.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """The rank moved: forget the stacks so far."""
        self._place: Signature | None = None
        self._row_at = 0.0
        self._num_in_row = 0
        self.activity: Activity | None = None
        self.where = ""
        self.where_any = ""
        self.threads: dict[int, Thread] = {}
        self.in_debugger = False
        self.num_taken = 0
        self.why_not = ""

    def take(self, threads: list[object], why_not: str, at: float) -> None:
        """Add a stack, or the reason why there is none."""
        thread = None
        try:
            processes: list[ProcessStack] = from_json(threads) if threads else []
            thread = main_thread(processes[0]) if processes else None
        except UnreadableError as error:
            why_not = str(error)
        if thread is None:
            self.why_not = why_not or "no main thread in the stack"
            return
        self.num_taken += 1
        self.activity, self.where = activity_of(thread), place_of(thread.frames)
        others = (place_of(each.frames) for process in processes for each in process.threads)
        self.where_any = self.where or next((place for place in others if place), "")
        self.threads = {each.tid: each for process in processes for each in process.threads if each.tid is not None}
        self.in_debugger = any(_is_debugger(frame) for frame in thread.frames)
        place = signature(thread.frames)
        if place != self._place or self.activity in _COMPUTES:
            self._place, self._row_at, self._num_in_row = place, at, 0
        self._num_in_row += 1

    def look(self, now: float) -> float | None:
        """Seconds at one place; None also while there are too few stacks."""
        return max(0.0, now - self._row_at) if self._num_in_row >= MIN_ROW else None


def _is_debugger(frame: Frame) -> bool:
    name = frame.file.rpartition("/")[2]
    return name in _DEBUGGERS or any(package in frame.file for package in _DEBUGGER_PACKAGES)
