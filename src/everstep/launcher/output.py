"""The ranks' output on the terminal, live: follows their log files, whole lines, each with torchrun's prefix.

The files are the truth and complete; this only shows them. It never blocks the ranks, and runs in a thread of its own
(`terminal`), so that a terminal that does not take output blocks nobody else either.
"""

import os
import string
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from everstep.agent.paths import is_other_name
from everstep.errors import ConfigError

DEFAULT_TEMPLATE = "[${role_name}${rank}]:"
_CHUNK_BYTES = 1 << 20

Write = Callable[[int, bytes], None]  # 1: stdout, 2: stderr


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """Which streams of which ranks are shown, and how they are marked."""

    log_dir: Path
    nproc_per_node: int
    world_size: int
    role: str
    template: str = DEFAULT_TEMPLATE
    streams: dict[int, int]  # local rank -> bits: 1 stdout, 2 stderr

    def prefix(self, rank: int) -> bytes:
        """torchrun's substitution, unknown variables left as they are."""
        values = {"role_name": self.role, "rank": rank, "local_rank": rank % self.nproc_per_node}
        return string.Template(self.template).safe_substitute(values).encode()


def shown_streams(redirects: str, tee: str, only: tuple[int, ...] | None, nproc: int) -> dict[int, int]:
    """torchrun's rule: shown unless redirected, tee wins over redirect, the filter over both. Raises ConfigError."""
    from torch.distributed.elastic.multiprocessing.api import Std, to_map

    bits: dict[int, int] = {}
    try:
        off, teed = (to_map(Std.from_str(text), nproc) for text in (redirects, tee))
    except (ValueError, AssertionError) as error:
        raise ConfigError(f"--redirects {redirects} --tee {tee}: {error}") from error
    for local_rank in range(nproc):
        hidden = int(off[local_rank]) & ~int(teed[local_rank])
        bits[local_rank] = 3 & ~hidden if only is None or local_rank in only else 0
    return bits


@dataclass
class _File:
    fd: int
    stream: int
    prefix: bytes
    rest: bytes = b""


@dataclass
class OutputTail:
    shown: Shown
    write: Write
    _generation: int = -1
    _files: dict[tuple[int, int], _File] = field(default_factory=dict)  # by rank and stream

    def poll(self) -> None:
        """Show what has come since the last call."""
        newer = self._newest_generation()
        while self._generation < newer:
            self._finish_generation()
            self._generation += 1
            if self._generation < newer:
                self._open_files()
        if self._generation >= 0:
            self._open_files()
            self._copy()

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

    def _open_files(self) -> None:
        for rank in range(self.shown.world_size):
            bits = self.shown.streams[rank % self.shown.nproc_per_node]
            for stream, name in ((1, "stdout.log"), (2, "stderr.log")):
                if not bits & stream or (rank, stream) in self._files:
                    continue
                path = self.shown.log_dir / f"gen-{self._generation}" / f"rank-{rank}" / name
                try:
                    if is_other_name(path):
                        continue
                    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                except OSError:
                    continue
                self._files[rank, stream] = _File(fd=fd, stream=stream, prefix=self.shown.prefix(rank))

    def _copy(self) -> None:
        texts: dict[int, list[bytes]] = {1: [], 2: []}
        for file in self._files.values():
            while data := _read(file.fd):
                lines = (file.rest + data).split(b"\n")
                file.rest = lines.pop()
                texts[file.stream] += [file.prefix + line + b"\n" for line in lines]
                if len(data) < _CHUNK_BYTES:
                    break
        for stream, lines in texts.items():
            if lines:
                self.write(stream, b"".join(lines))

    def _finish_generation(self) -> None:
        self._copy()
        for file in self._files.values():
            if file.rest:
                self.write(file.stream, file.prefix + file.rest + b"\n")
            os.close(file.fd)
        self._files.clear()


def _read(fd: int) -> bytes:
    try:
        return os.read(fd, _CHUNK_BYTES)
    except OSError:
        return b""
