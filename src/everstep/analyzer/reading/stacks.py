"""py-spy dumps as ProcessStacks: its JSON and its text. Both are needed: `--json` leaves child processes out.

The file may say anything, so every field is checked. Raises UnreadableError, nothing else. Pure.
"""

import re

from everstep.analyzer.observations.frames import is_user_file, short_name
from everstep.analyzer.observations.records import Frame, ProcessStack, Thread
from everstep.analyzer.reading.pickled import UnreadableError

MAX_FRAMES = 2_000  # Python's own recursion limit is 1,000
MAX_THREADS = 10_000
MAX_TEXT_LINES = 200_000

_PROCESS = re.compile(r"Process (\d{1,9}): ?(.*)")
_PARENT = re.compile(r"Parent Process (\d{1,9}): ?(.*)")
_THREAD = re.compile(r'Thread (?:0x)?[0-9A-Fa-f]+ \(([a-z+ ]+)\)(?:: "(.*)")?')
_LINE = re.compile(r":(\d{1,9})$")
MAX_LINE = 4_000
"""Of a line. py-spy's own are as long as a name and a path."""


def is_stack_json(raw: object) -> bool:
    return isinstance(raw, list) and bool(raw) and isinstance(raw[0], dict) and {"frames", "pid"} <= raw[0].keys()


def from_json(raw: object) -> list[ProcessStack]:
    """Processes in the order in which they appear."""
    if not isinstance(raw, list):
        raise UnreadableError(f"a py-spy dump is a list of threads, this is {type(raw).__name__}")
    threads: dict[int, list[Thread]] = {}
    facts: dict[int, tuple[int | None, str]] = {}
    for number, entry in enumerate(raw[:MAX_THREADS]):
        if not isinstance(entry, dict) or not isinstance(entry.get("frames"), list):
            raise UnreadableError(f"thread {number} of the py-spy dump has no frames")
        pid = entry.get("pid")
        if _whole(pid) is None or not isinstance(pid, int):
            raise UnreadableError(f"thread {number} of the py-spy dump has no pid")
        name = entry.get("thread_name")
        if not isinstance(name, str):
            name = "MainThread" if entry.get("os_thread_id") == pid else ""
        threads.setdefault(pid, []).append(
            Thread(
                name=name,
                frames=tuple(_frame(frame) for frame in entry["frames"][:MAX_FRAMES]),
                active=entry.get("active") is True,
                owns_gil=entry.get("owns_gil") is True,
                tid=_whole(entry.get("os_thread_id")),
            )
        )
        facts.setdefault(pid, _facts(entry.get("process_info")))
    return [
        ProcessStack(pid=pid, threads=tuple(listed), parent=facts[pid][0], command=facts[pid][1])
        for pid, listed in threads.items()
    ]


def _whole(value: object) -> int | None:
    """A number of a process, a thread or a line."""
    is_one = isinstance(value, int) and not isinstance(value, bool) and -(1 << 63) <= value < 1 << 63
    return value if is_one and isinstance(value, int) else None


def _facts(info: object) -> tuple[int | None, str]:
    if not isinstance(info, dict):
        return None, ""
    parent, command = info.get("parent"), info.get("command_line")
    parent_pid = parent.get("pid") if isinstance(parent, dict) else None
    return _whole(parent_pid), command[:500] if isinstance(command, str) else ""


def _frame(raw: object) -> Frame:
    if not isinstance(raw, dict) or not isinstance(raw.get("name"), str):
        raise UnreadableError("frame without a name in the py-spy dump")
    file, short, line = raw.get("filename"), raw.get("short_filename"), raw.get("line")
    full = file if isinstance(file, str) else ""
    return Frame(
        raw["name"][:200],
        (short if isinstance(short, str) else short_name(full))[:200],
        _whole(line) or 0,
        is_user_file(full),
    )


def from_text(text: str) -> list[ProcessStack]:
    """`py-spy dump`, with or without --subprocesses, any number of dumps one after another."""
    readers: list[_Reader] = []
    for line in text.splitlines()[:MAX_TEXT_LINES]:
        process = _PROCESS.match(line[:MAX_LINE])
        if process:
            readers.append(_Reader(int(process[1]), process[2]))
        elif readers:
            readers[-1].read(line)
    if not any(reader.threads for reader in readers):
        raise UnreadableError("no thread in the py-spy dump")
    return [reader.finish() for reader in readers]


def _frame_in(text: str) -> Frame | None:
    """`    name (file:line)`. By hand: an expression would try each parenthesis with each other one."""
    name, separator, rest = text.rpartition(" (")
    if not separator or not name.startswith("    ") or not name[4:] or not rest.endswith(")"):
        return None
    found = _LINE.search(rest[:-1])
    file = rest[: found.start()] if found else rest[:-1]
    if not file:
        return None
    return Frame(name[4:][:200], file[:200], int(found[1]) if found else 0, is_user_file(file))


class _Reader:
    """One process of a text dump."""

    def __init__(self, pid: int, command: str) -> None:
        self.pid = pid
        self.command = command[:500]
        self.parent: int | None = None
        self.threads: list[tuple[str, str, list[Frame]]] = []

    def read(self, line: str) -> None:
        line = line[:MAX_LINE]
        thread, frame, parent = _THREAD.match(line), _frame_in(line), _PARENT.match(line)
        if parent:
            self.parent = int(parent[1])
        elif thread and len(self.threads) < MAX_THREADS:
            self.threads.append((thread[2] or "", thread[1], []))
        elif frame and self.threads and len(self.threads[-1][2]) < MAX_FRAMES:
            self.threads[-1][2].append(frame)

    def finish(self) -> ProcessStack:
        return ProcessStack(
            pid=self.pid,
            parent=self.parent,
            command=self.command,
            threads=tuple(
                Thread(name=name, frames=tuple(frames), active="active" in state, owns_gil="gil" in state)
                for name, state, frames in self.threads
            ),
        )
