"""A folder of logs, stacks and flight records becomes a Case for the analyzer, with a note for all that was left out.

Reads regular files only, never follows a link, never opens a pipe or a device. A file that cannot be used is listed
with the reason and blames no rank. Called by `everstep analyze` and by the tracer of `everstep doctor`.
"""

import os
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO

import msgspec

from everstep.analyzer.numbers.series import Point
from everstep.analyzer.observations.claims import Claims, merge
from everstep.analyzer.observations.clusters import doing
from everstep.analyzer.observations.records import ProcessStack
from everstep.analyzer.reading.pickled import UnreadableError
from everstep.errors import ConfigError
from everstep.evidence import inventory, unpacking
from everstep.evidence.ahead import Ahead
from everstep.evidence.assemble import RankFiles, assemble, with_record
from everstep.evidence.contents import Folder, Unreadable
from everstep.evidence.decode import MAX_DUMP_BYTES, Part, decode
from everstep.evidence.known import KnownLines
from everstep.evidence.logs import WHOLE_BYTES, LogRead, lines_of, read_lines, read_log
from everstep.evidence.names import generation_in, numbered, rank_in
from everstep.evidence.sniff import HEAD_BYTES, Kind, kind_of
from everstep.evidence.watched import TooLongError, Watch, say, unwatched
from everstep.linux.regular import regular

MAX_FILES = 200_000
MAX_DEPTH = 12
MAX_READ_S = 120.0
"""All reading together; what is left is listed as not read. A folder must not keep a person waiting for ever."""


_NOT_READ = {
    Kind.COMPRESSED: ": unpack it first",
    Kind.ARCHIVE: ": unpack it first",
    Kind.WIDE: ": write it as UTF-8 first (iconv -f UTF-16)",
    Kind.BINARY: " of no known format",
}

MAX_UNOWNED = 8
"""Stacks of one file of which nothing says the rank."""


_NO_EVIDENCE = ("code/", "secret", "token", "join-token", "pilot-token", "tls-")


class _Reading:
    """One pass over a folder."""

    def __init__(self, root: Path, watch: Watch, skip: Mapping[str, str], now: float, ahead: Ahead) -> None:
        self.root = root
        self.ahead = ahead
        self.watch = watch
        self.skip = skip
        self.ranks: defaultdict[int | None, defaultdict[int, RankFiles]] = defaultdict(lambda: defaultdict(RankFiles))
        self.points: dict[str, list[Point]] = {}
        self.claims: defaultdict[int | None, list[Claims]] = defaultdict(list)
        self.known: defaultdict[int | None, KnownLines] = defaultdict(lambda: KnownLines(now))
        self.num_logs = 0
        self.notes: list[str] = []
        self.unread: set[int] = set()
        self.unreadable: list[Unreadable] = []
        self.newest = 0.0
        self.numbered: dict[str, int] = {}

    def read_all(self, paths: list[str], deadline: float) -> None:
        self.numbered = numbered(paths)
        for path in paths:
            if time.monotonic() > deadline:
                self.leave(path)
                continue
            rank = rank_in(path)
            try:
                if path in self.skip:
                    raise UnreadableError(self.skip[path])
                with self.watch(path):
                    self.read(path, rank)
            except (Exception, TooLongError) as error:
                is_content = isinstance(error, UnreadableError)
                self.refuse(path, say(error), self.numbered.get(path) if rank is None and is_content else rank)

    def leave(self, path: str) -> None:
        """Leave a file out for lack of time: its rank is unknown, by our own limit."""
        self.refuse(path, f"not read: the files before it took {MAX_READ_S:.0f} s", None)
        rank = rank_in(path)
        self.unread.update(() if rank is None else (rank,))

    def refuse(self, path: str, why: str, rank: int | None) -> None:
        self.unreadable.append(Unreadable(file=path, why=why, rank=rank))
        if rank is not None:  # that it exists, and could not be read, is known of this rank
            self.ranks[generation_in(path)][rank].unavailable.append(f"{path}: {why}")

    def read(self, path: str, rank: int | None) -> None:
        with regular(self.root / path, follow=False) as file:
            status = os.fstat(file.fileno())
            head = file.read(HEAD_BYTES)
            kind = kind_of(head, path)
            file.seek(0)
            if kind is Kind.LOG:
                self.add_log(path, rank, read_lines(file, status.st_size), self.ahead.log(path))
                if (left := status.st_size - WHOLE_BYTES) > 0:
                    says = f"{left >> 10:,} KiB in the middle were not read; numbers of lines below them are too small"
                    self.notes.append(f"{path}: {says}")
            elif kind is Kind.EMPTY:
                self.empty(path, rank)
            elif kind is Kind.COMPRESSED and unpacking.is_known(head):
                self.read_compressed(path, rank, file, status.st_mtime)
            elif kind in _NOT_READ:
                raise UnreadableError(f"{kind}{_NOT_READ[kind]}")
            elif status.st_size > MAX_DUMP_BYTES:
                raise UnreadableError(
                    f"{status.st_size >> 20} MiB; a dump of one rank has at most {MAX_DUMP_BYTES >> 20}"
                )
            elif kind is Kind.PICKLE and (record := self.ahead.record(path)) is not None:
                self.add_part(path, rank, Part(record=record), status.st_mtime)
            else:
                self.add_parts(path, rank, file.read(MAX_DUMP_BYTES), kind, status.st_mtime)

    def read_compressed(self, path: str, rank: int | None, file: BinaryIO, written_at: float) -> None:
        kind = kind_of(unpacking.first_bytes(file, HEAD_BYTES), path.rpartition(".")[0])
        if kind is Kind.LOG:
            found = unpacking.ends(file)
            self.add_log(path, rank, lines_of(found.data))
            if found.num_left_out:
                self.notes.append(f"{path}: {found.num_left_out >> 10:,} KiB in the middle were not read")
            if found.why_ends:
                self.notes.append(f"{path}: was not read to its end: {found.why_ends}")
        elif kind is Kind.EMPTY:
            self.empty(path.rpartition(".")[0], rank)
        elif kind in _NOT_READ:
            raise UnreadableError(f"{kind} within a compressed file{_NOT_READ[kind]}")
        else:
            self.add_parts(path, rank, unpacking.whole(file, MAX_DUMP_BYTES), kind, written_at)

    def empty(self, path: str, rank: int | None) -> None:
        """An empty log says that the rank exists; an empty dump says that it could not be taken."""
        if path.endswith((".log", ".txt", ".out", ".err")) or "." not in path.rpartition("/")[2]:
            if rank is not None:
                self.ranks[generation_in(path)][rank].seen = True
            return
        raise UnreadableError("empty")

    def add_log(self, path: str, rank: int | None, lines: list[str], read: LogRead | None = None) -> None:
        """`read`: what was read of it ahead."""
        self.known[generation_in(path)].add(path, rank, lines)
        read = read or read_log(lines, rank)
        self.claims[generation_in(path)].append(read.claims)
        self.num_logs += 1
        for owner, process in read.stacks.owned:
            self.ranks[generation_in(path)][owner].add(path, Part(processes=(process,)))
        self.notes += [_without_rank(path, process) for process in read.stacks.unowned[:MAX_UNOWNED]]
        for of_rank, facts in read.facts:
            if facts.points:
                self.points[path if of_rank is None else f"{path} rank {of_rank}"] = facts.points
            if of_rank is not None:
                self.ranks[generation_in(path)][of_rank].logs.append(facts)

    def add_parts(self, path: str, rank: int | None, data: bytes, kind: Kind, written_at: float) -> None:
        if kind is Kind.STACK_TEXT and rank is None and path not in self.numbered:  # dumps of many ranks in one file
            self.add_log(path, rank, data.decode("utf-8", "replace").splitlines())
            return
        try:
            parts = decode(data, kind)
        except UnreadableError:
            if kind is Kind.JSON and b"}\n{" in data[: 1 << 20]:  # a log with one object per line
                self.add_log(path, rank, data.decode("utf-8", "replace").splitlines())
                return
            raise
        for part in parts:
            self.add_part(path, rank, part, written_at)

    def add_part(self, path: str, rank: int | None, part: Part, written_at: float) -> None:
        generation = part.generation if part.generation is not None else generation_in(path)
        said = part.rank if part.rank is not None else rank
        if said is None and path in self.numbered:
            said = self.numbered[path]
            if said in {process.pid for process in part.processes}:
                said = None  # the number in the name is the process id
        if said is None:
            raise UnreadableError("nothing says which rank it is of; name it ...rank-N...")
        part = part if part.at is not None else msgspec.structs.replace(part, at=written_at)
        self.newest = max(self.newest, part.at or 0.0)
        made = with_record(part, said)
        if part.raw_record is not None and made.record is None:
            self.notes.append(f"{path}: {made.unavailable[-1]}")
        self.ranks[generation][said].add(path, made)


def _without_rank(path: str, process: ProcessStack) -> str:
    does = doing(process)
    return (
        f"{path}: the stack of process {process.pid} was read, and nothing says which rank it is"
        f"{f': {does}' if does else ''}; one file per rank, named ...rank-N..., shows who waits for whom"
    )


def read_folder(
    root: Path,
    now: float,
    watch: Watch = unwatched,
    skip: Mapping[str, str] = MappingProxyType({}),
    num_ahead: int | None = 0,
) -> Folder:
    """Raises ConfigError when `root` is not a directory that can be read; never because of what is in it. `skip`: files
    that are not to be read, and why. What is foreign is read by `apart`. `num_ahead`: processes that read flight
    records ahead, which a caller with threads cannot have; None: as many as pay."""
    try:
        if root.is_file():  # one pasted log
            root, paths = root.resolve().parent, [root.resolve().name]
        else:
            paths = _in_order(root, list(_walk(root)))
    except OSError as error:
        raise ConfigError(f"{root}: cannot be read as a directory of evidence: {error.strerror or error}") from error
    wanted = [path for path in paths[:MAX_FILES] if path not in skip]
    with Ahead(root, wanted, num_ahead) as ahead:
        reading = _Reading(root, watch, skip, now, ahead)
        reading.read_all(paths[:MAX_FILES], time.monotonic() + MAX_READ_S)
    generation, by_rank, notes = _choose_generation(reading.ranks)
    case, more = assemble(by_rank, reading.newest or now, watch)
    notes += reading.notes
    unlabelled = reading.claims[None] if generation is not None else []
    unread = tuple(sorted(reading.unread - by_rank.keys()))
    case = msgspec.structs.replace(case, claims=merge([*reading.claims[generation], *unlabelled]), unread=unread)
    known = reading.known[generation].found()
    return Folder(
        case=case,
        points=reading.points,
        notes=(*notes, *more, *([f"only the first {MAX_FILES:,} files were read"] if len(paths) > MAX_FILES else [])),
        unreadable=tuple(reading.unreadable),
        num_files=len(paths),
        generation=generation,
        known=known,
        read=inventory.read(case, known, reading.num_logs),
    )


def _in_order(root: Path, paths: list[str]) -> list[str]:
    """Sort files that name a rank first, as time may run out. In a run's own directory, leave out the copy of its
    program, which is not evidence and may be large, and every key."""
    if {"journal.jsonl", "spec.json"} <= set(paths):
        paths = [path for path in paths if not path.startswith(_NO_EVIDENCE)]
    return sorted(paths, key=lambda path: ("rank" not in path, path))


def _walk(root: Path) -> Iterator[str]:
    """Paths of everything that is not a directory, below `root`. Links are not followed."""
    if not root.is_dir():
        raise NotADirectoryError(20, "not a directory", str(root))
    os.scandir(root).close()  # os.walk would hide that it may not be read
    for folder, subfolders, names in os.walk(root, followlinks=False):
        below = os.path.relpath(folder, root)
        if below != "." and below.count(os.sep) + 1 >= MAX_DEPTH:
            subfolders.clear()
        for name in names:
            yield name if below == "." else f"{below}/{name}"


def _choose_generation(
    ranks: dict[int | None, defaultdict[int, RankFiles]],
) -> tuple[int | None, dict[int, RankFiles], list[str]]:
    """The newest generation that is labelled, with what bears no label."""
    labelled = sorted(generation for generation in ranks if generation is not None)
    if not labelled:
        return None, dict(ranks.get(None, {})), []
    # The newest one with a dump: a generation of which only logs are left says less.
    newest = max((g for g in labelled if any(f.has_dump for f in ranks[g].values())), default=labelled[-1])
    chosen = dict(ranks[newest])
    for rank, files in ranks.get(None, {}).items():
        chosen[rank] = chosen[rank].merged(files) if rank in chosen else files
    notes = [
        f"generation {other} was set aside ({len(ranks[other])} ranks): the verdict is about generation {newest}"
        for other in labelled
        if other != newest
    ]
    if ranks.get(None) and any(files.has_dump for files in ranks[None].values()):
        notes.append(f"files without a generation in their path are taken to be of generation {newest}")
    return newest, chosen, notes
