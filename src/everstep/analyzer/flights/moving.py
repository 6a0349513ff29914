"""Does the job of these flight records still move? Pure; asked by `localise` and `combine`.

On NCCL the host queues operations for its device and runs ahead of it: at every moment of a healthy job dozens of them
wait, and ranks differ by as many. So what most ranks entered just before their records were taken is no hang.
"""

from everstep.analyzer.observations.positions import Positions

LATELY_S = 5.0
"""The record counts as moving if a host queued, or a device ended, something within so many seconds before it.

NCCL writes records by itself when a collective timed out, minutes later; a user who takes them by hand sooner gets them
taken again. For a watched job the usual pause is known: then nothing older than that moves (`lately_s`)."""

LEAST_S = 1.0
"""Lower limit of `lately_s`: a look at the ranks is no finer than this."""

SPREAD_S = 5.0
"""Ranks take their records within so many seconds of each other. What begins later than this after the first record is
no sign of life but a clock that differs, or a record of another time."""


def lately_s(positions: Positions) -> float:
    """How fresh a sign of life of this job is, in seconds."""
    return LATELY_S if positions.usual_s is None else max(LEAST_S, min(LATELY_S, positions.usual_s))


def is_alive(positions: Positions, rank: int) -> bool:
    """Whether the rank shows a sign of life shortly before its own record was taken; not, where that is not known."""
    record = positions.records.get(rank)
    if record is None or record.taken_at is None:
        return False
    seen_at = record.entries.seen_at
    return seen_at is not None and -SPREAD_S <= record.taken_at - seen_at < lately_s(positions)


def is_moving(positions: Positions) -> bool:
    """Most ranks of a job on NCCL are alive."""
    records = positions.records
    if not any(record.is_queued for record in records.values()):
        return False
    alive = sum(is_alive(positions, rank) for rank in records)
    return 2 * alive > len(records)
