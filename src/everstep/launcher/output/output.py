"""The ranks' output on the terminal, live: follows their log files.

Output that no flag selects is shown as it was written: every byte, no prefix, and no waiting for the end of a line
unless another rank is in the middle of one (`one_screen`). What --tee selects is shown as torchrun shows it (`teed`).
The files are complete; this only shows them. It never blocks the ranks, and runs in a thread of its own (`terminal`),
so that a terminal that takes nothing blocks nothing else either.
"""

import contextlib
import os
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from everstep.agent.streams.paths import STDERR_NAME, STDOUT_NAME, is_other_name
from everstep.launcher.output.one_screen import OneScreen
from everstep.launcher.output.shown import Shown
from everstep.launcher.output.teed import PATIENCE_S, TeedLines
from everstep.linux.changes import Changes
from everstep.linux.regular import open_regular
from everstep.model.spec import STDERR, STDOUT

_CHUNK_BYTES = 256 << 10
_MAX_LOOKS = 4
_MAX_CHUNKS = 64
_FOLDER = "folder"  # the key of all folders
_BOTH = (STDOUT, STDERR)

Write = Callable[[int, bytes], None]  # 1: stdout, 2: stderr


@dataclass
class _File:
    fd: int
    stream: int
    rank: int
    teed: TeedLines | None = None  # None: as it was written
    grew_at: float = 0.0


@dataclass
class OutputTail:
    """Copies `streams` to `write`."""

    shown: Shown
    write: Write
    streams: tuple[int, ...] = _BOTH
    is_elsewhere: Callable[[int, int], bool] = lambda generation, rank: False
    _generation: int = -1
    _files: dict[object, _File] = field(default_factory=dict)  # by rank and stream
    _changes: Changes = field(default_factory=Changes)
    _just_opened: set[object] = field(default_factory=set)  # what was written before has no event
    _folders: set[Path] = field(default_factory=set)  # watched

    def __post_init__(self) -> None:
        self._screen = OneScreen(self.write)

    def wait(self, timeout_s: float) -> None:
        """Show what ranks write meanwhile, as they write it; returns when the time is over, or something was shown."""
        changed = self._changes.wait(timeout_s)
        if _FOLDER in changed or _FOLDER in self._copy_in_turn(changed):
            self.poll(changed)

    def wake(self) -> None:
        self._changes.wake()

    def poll(self, changed: Iterable[object] = ()) -> None:
        """Show what has come since the last call, with or without an event; `changed`: events already taken."""
        events = list(changed)
        while True:
            self._open_generations()
            unread = self._with_more()
            events = _joined(events, self._changes.take())
            opened = [key for key in unread if key in self._just_opened]
            self._just_opened.clear()
            events = self._copy_in_turn([key for key in unread if key not in (*events, *opened)] + events, opened)
            if _FOLDER not in events:
                break
            events = []
        self._show_rests()

    def _open_generations(self) -> None:
        self._watch_folder(self.shown.log_dir)
        while self._generation < self._newest_generation():
            self._finish_generation()
            self._watch_folder(self.shown.log_dir)
            self._generation += 1
            self._open_files()
        if self._generation >= 0:
            self._open_files()

    def _with_more(self) -> list[object]:
        """Files with something unread, the one first that was written to first."""
        found = []
        for key, file in self._files.items():
            status = os.fstat(file.fd)
            if status.st_size != os.lseek(file.fd, 0, os.SEEK_CUR):
                found.append((status.st_mtime_ns, key))
        return [key for _, key in sorted(found)]

    def skip_existing(self) -> None:
        """Begin behind the generations of earlier attempts; call it before the first poll."""
        self._generation = self._newest_generation()

    def drain(self) -> None:
        """Everything that is there, with a last line that was cut."""
        self.poll()
        self._finish_generation()

    def _newest_generation(self) -> int:
        """By the folders there are. One whose node was lost before it started has none, so they may have holes."""
        try:
            names = [entry.name for entry in os.scandir(self.shown.log_dir)]
        except OSError:
            return self._generation
        numbers = [int(name[4:]) for name in names if name.startswith("gen-") and name[4:].isdigit()]
        return max(numbers, default=self._generation)

    def _watch_folder(self, path: Path) -> None:
        """So that what is new there is seen before anything is written to it."""
        if path not in self._folders and self._changes.add_folder(path, _FOLDER):
            self._folders.add(path)

    def _open_files(self) -> None:
        folder = self.shown.log_dir / f"gen-{self._generation}"
        self._watch_folder(folder)
        for rank in range(self.shown.world_size):
            bits = self.shown.streams(rank)
            if bits:
                self._watch_folder(folder / f"rank-{rank}")
            for stream, name in ((STDOUT, STDOUT_NAME), (STDERR, STDERR_NAME)):
                if stream not in self.streams or not bits & stream or (rank, stream) in self._files:
                    continue
                self._open(folder / f"rank-{rank}" / name, rank, stream)

    def _open(self, path: Path, rank: int, stream: int) -> None:
        if is_other_name(path) or self.is_elsewhere(self._generation, rank):
            return  # shown where the other stream is
        try:
            fd = open_regular(path)
        except OSError:
            return
        teed = TeedLines(self.shown.prefix(rank)) if self.shown.is_teed(rank, stream) else None
        self._files[rank, stream] = _File(fd, stream, rank, teed)
        if teed is not None and self.shown.filters.get(stream):
            self._duplicate(self._files[rank, stream], [])
        self._changes.add(path, (rank, stream))
        self._just_opened.add((rank, stream))

    def _copy_in_turn(self, changed: list[object], opened: Sequence[object] = ()) -> list[object]:
        """Show the output of several files in the order in which their writers took turns; returns all events.

        It is known what each wrote and in which order they took turns, but not how much at a time. So each turn shows
        one line, and the last turn the rest. A rank that writes a line at a time is shown where it belongs. `opened`:
        since the last call."""
        unread = {key: self._take(key) for key in dict.fromkeys((*opened, *changed))}
        for _ in range(_MAX_LOOKS):
            more = self._changes.take()
            if not more:
                break
            changed = _joined(changed, more)
            for key in dict.fromkeys(more):
                unread[key] = unread.get(key, b"") + self._take(key)
        is_much = [key for key, data in unread.items() if len(data) >= _CHUNK_BYTES]
        lines = {key: deque(data.splitlines(keepends=True)) for key, data in unread.items()}
        turns = Counter(changed)
        for key in opened:  # output without an event was written before the file was watched
            self._show_next(key, lines[key], len(lines[key]) - turns[key])
        for key in changed:
            turns[key] -= 1
            self._show_next(key, lines[key], 1 if turns[key] else len(lines[key]))
        self._copy(is_much, _MAX_CHUNKS)
        return changed

    def _show_next(self, key: object, lines: deque[bytes], number: int) -> None:
        data = b"".join(lines.popleft() for _ in range(min(number, len(lines))))
        if data:
            self._show(self._files[key], data)

    def _take(self, key: object) -> bytes:
        """Read what comes next of this file, if it is one."""
        file = self._files.get(key)
        data = b"" if file is None else _read(file.fd)
        if file is not None and data:
            file.grew_at = time.monotonic()
        return data

    def _copy(self, keys: Iterable[object], most: int | None = None) -> None:
        """Copy all that is there of each, or `most` chunks: one that is written faster than the terminal takes it must
        leave room for the others, and for everstep's own lines. The rest comes with the next look."""
        left = dict.fromkeys(keys, most)
        while left:
            for key, chunks in list(left.items()):
                data = self._take(key)
                if data:
                    self._show(self._files[key], data)
                if len(data) < _CHUNK_BYTES or chunks == 1:
                    del left[key]
                elif chunks is not None:
                    left[key] = chunks - 1

    def _show(self, file: _File, data: bytes) -> None:
        if file.teed is None:
            self._screen.show(file, file.stream, data, time.monotonic())
        else:
            self._show_lines(file, file.teed.feed(data))

    def _show_lines(self, file: _File, lines: list[str]) -> None:
        if lines:
            self._screen.show(file, file.stream, "".join(lines).encode(), time.monotonic())
            if self.shown.filters.get(file.stream):
                self._duplicate(file, lines)

    def _show_rests(self) -> None:
        """Show unfinished lines after a while: one may be a prompt."""
        now = time.monotonic()
        for file in self._files.values():
            if file.teed is not None and file.teed.has_rest and now - file.grew_at > PATIENCE_S:
                self._show_lines(file, file.teed.rest())
        self._screen.look(now)

    def _finish_generation(self) -> None:
        self._copy(self._files)
        for file in self._files.values():
            if file.teed is not None:
                self._show_lines(file, file.teed.finish())
            os.close(file.fd)
        self._screen.finish()
        self._changes.clear()
        self._folders.clear()
        self._files.clear()

    def _duplicate(self, file: _File, lines: list[str]) -> None:
        """Lines that --duplicate-...-filters names go to a file of their own, too, as with torchrun."""
        found = [line for line in lines if self.shown.is_duplicated(file.stream, line)]
        path = self.shown.filtered_file(self._generation, file.rank, file.stream)
        with (
            contextlib.suppress(OSError),
            path.open("ab") as target,
        ):  # they are on the terminal and in the ranks' files
            target.write("".join(found).encode())


def _joined(events: list[object], more: list[object]) -> list[object]:
    """`print` to an unbuffered stream is several writes: the same file twice in a row is one turn."""
    return events + (more[1:] if more and events[-1:] == more[:1] else more)


def _read(fd: int) -> bytes:
    """Read what comes next, past what a file above its limit has given up (agent/streams/log_limit.py)."""
    try:
        data = os.read(fd, _CHUNK_BYTES)
        if data and not data.strip(b"\0"):
            here = os.lseek(fd, 0, os.SEEK_CUR)
            if os.lseek(fd, here - len(data), os.SEEK_DATA) >= here:
                return os.read(fd, _CHUNK_BYTES)
            os.lseek(fd, here, os.SEEK_SET)
        if not data and os.fstat(fd).st_size < os.lseek(fd, 0, os.SEEK_CUR):
            os.lseek(fd, 0, os.SEEK_SET)  # `echo x > /dev/stdout` empties a file, and a pipe it would not have
            return os.read(fd, _CHUNK_BYTES)
        return data
    except OSError:
        return b""
