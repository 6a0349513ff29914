"""Contents of a directory of evidence. Separate from `folder`, which reads it, so that code that only needs the values
does not load the readers."""

import msgspec

from everstep.analyzer.numbers.series import Point
from everstep.analyzer.observations.known import Known
from everstep.analyzer.observations.records import Case


class Unreadable(msgspec.Struct, frozen=True, kw_only=True):
    file: str  # path below the folder
    why: str
    rank: int | None = None


class Folder(msgspec.Struct, frozen=True, kw_only=True):
    case: Case
    points: dict[str, list[Point]]  # series of loss and gradient norm, by log file and rank
    notes: tuple[str, ...]  # what was set aside, and why
    unreadable: tuple[Unreadable, ...]
    num_files: int
    generation: int | None
    known: tuple[Known, ...] = ()  # what the signatures found in the logs, the cause first
    read: tuple[str, ...] = ()  # what kinds of evidence were there
    collect: tuple[str, ...] = ()  # what would say more
