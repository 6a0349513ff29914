"""Claims about ranks in the text of libraries and tools: NCCL's watchdog, its RAS, collective fingerprints,
torchfrtrace.

A flight record is observed; a claim is read, out of any pasted text. Made by `reading.tool_text`, judged by
`hangs.claimed`.
"""

import enum
from collections.abc import Sequence

import msgspec


class Kind(enum.StrEnum):
    MISSING = "missing"  # did not join an operation, or a barrier
    BEHIND = "behind"  # has launched less than the others
    MISMATCH = "mismatch"  # called something else
    SILENT = "silent"  # does not answer, or is dead
    INIT = "init"  # did not come to the end of a communicator's initialisation, or not to its begin
    STUCK = "stuck"  # its own watching thread stands still


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """Report of one rank's watchdog on one group."""

    rank: int
    group: str = ""
    op: str = ""
    size: str = ""  # elements in and out, in the library's words
    seq: int | None = None  # that did not complete
    enqueued: int | None = None
    completed: int | None = None


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's call, as a library compared or traced it."""

    rank: int
    group: str = ""
    seq: int | None = None
    op: str = ""
    form: str = ""  # shape and type, in the library's words


class Named(msgspec.Struct, frozen=True, kw_only=True):
    """Ranks that a tool names; no ranks: it says what is wrong, and not with whom."""

    source: str
    kind: Kind
    ranks: tuple[int, ...]
    says: str  # in the past tense, which is the same for one rank and for many; without ranks a whole sentence
    others: tuple[int, ...] = ()  # those that the tool compares them with, where it lists them
    is_sure: bool = True  # False: a running job looks the same


class Claims(msgspec.Struct, frozen=True, kw_only=True):
    works: tuple[Work, ...] = ()
    calls: tuple[Call, ...] = ()
    last_calls: tuple[Call, ...] = ()  # the newest call of each rank and communicator in a trace
    named: tuple[Named, ...] = ()
    world_size: int | None = None  # as the text says
    speakers: tuple[int, ...] = ()  # ranks that wrote anything

    @property
    def world(self) -> tuple[int, ...]:
        """All ranks as far as the text shows them: a gap in the numbering of those that speak is a rank that is
        silent."""
        known = {work.rank for work in self.works} | set(self.speakers)
        known |= {call.rank for call in (*self.calls, *self.last_calls)}
        size = self.world_size
        if size is None:
            size = max(known, default=-1) + 1
            if len(known) < 3 or len(known) < 0.75 * size:
                return tuple(sorted(known))
        return tuple(sorted({*known, *range(min(size, MAX_WORLD))}))


MAX_WORLD = 200_000


def merge(all_claims: Sequence[Claims]) -> Claims:
    """Those of all logs of a job together."""
    return Claims(
        works=tuple(work for claims in all_claims for work in claims.works),
        calls=tuple(call for claims in all_claims for call in claims.calls),
        last_calls=tuple(call for claims in all_claims for call in claims.last_calls),
        named=tuple(dict.fromkeys(named for claims in all_claims for named in claims.named)),
        world_size=max((c.world_size for c in all_claims if c.world_size is not None), default=None),
        speakers=tuple(sorted({rank for claims in all_claims for rank in claims.speakers})),
    )
