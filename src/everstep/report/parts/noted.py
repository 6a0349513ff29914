"""Text about the last progress of each rank, and about why a rank that makes none is left alone. Views to text;
pure."""

from everstep.analyzer.observations.words import busy_text, ranks_text, verb
from everstep.journal.view import RunView
from everstep.model.facts import RankAccount, RankNote
from everstep.report.parts.units import count, duration

MAX_GROUPS = 8
"""Lines of one screen; the rest is counted."""


def note_lines(view: RunView, now: float) -> list[str]:
    """Ranks that say that they are busy, and those whose process does not end. Same words, one line."""
    groups: dict[tuple[str, str], list[tuple[int, RankNote]]] = {}
    for account in _alive(view):
        if (note := account.note) is not None:
            groups.setdefault((note.kind, note.says), []).append((account.rank, note))
    texts = [_note_text(found, now) for found in groups.values()]
    return [*texts[:MAX_GROUPS], *([f"and {len(texts) - MAX_GROUPS} more"] if len(texts) > MAX_GROUPS else [])]


def ending_ranks(view: RunView) -> list[int]:
    """Their programs are over, and their processes are not."""
    generation = view.generation
    if generation is None:
        return []
    noted = [(each.rank, each.note) for each in generation.accounts.values() if each.note is not None]
    return sorted(rank for rank, note in noted if note.kind == "ending" and rank not in generation.exits)


def ending_text(ranks: list[int], says: str, for_s: float) -> str:
    """The line about ranks that have left their program and are still there."""
    have, their = verb(ranks, "has finished its program", "have finished their programs"), verb(ranks, "its", "their")
    does = verb(ranks, "process does not end", "processes do not end")
    it_is = verb(ranks, "it is", "they are")
    where = f": {it_is} at {says}" if says else ""
    return f"{ranks_text(ranks)} {have} {duration(for_s)} ago, but {their} {does}{where}"


def _note_text(found: list[tuple[int, RankNote]], now: float) -> str:
    ranks, note = [rank for rank, _ in found], found[0][1]
    for_s = max(0.0, now - min(each.since for _, each in found))
    if note.kind == "ending":
        return ending_text(ranks, note.says, for_s)
    says = (
        busy_text(note.says)
        if len(ranks) == 1
        else busy_text(note.says).replace("says that it is", "say that they are")
    )
    return f"{ranks_text(ranks)} {says}, for {duration(for_s)}"


def progress_text(view: RunView, now: float) -> str:
    """The last sign of progress of each rank by kind and age, the oldest first; empty while no rank runs."""
    groups: dict[str, list[tuple[int, float]]] = {}
    unknown = []
    for account in _alive(view):
        kind, at = last_progress(account)
        if at is None:
            unknown.append(account.rank)
        else:
            groups.setdefault(kind, []).append((account.rank, max(0.0, now - at)))
    listed = sorted(groups.items(), key=lambda each: -max(age for _, age in each[1]))
    texts = [f"{kind} of {ranks_text(rank for rank, _ in found)} {_ages(found)} ago" for kind, found in listed]
    if unknown:
        texts.append(f"none of {ranks_text(unknown)} is known")
    return "; ".join([*texts[:MAX_GROUPS], *([f"{len(texts) - MAX_GROUPS} more"] if len(texts) > MAX_GROUPS else [])])


def progress_of_ranks(view: RunView) -> dict[int, tuple[str, float | None]]:
    """For each rank that runs: what its last progress was, and when."""
    return {each.rank: last_progress(each) for each in _alive(view)}


def last_progress(account: RankAccount) -> tuple[str, float | None]:
    """Return the kind and the time of a rank's last progress: a step, or a collective where that came later or steps
    are not seen. The time is None where no progress is known."""
    known = [
        (at, kind)
        for at, kind in (
            (account.last_step_at, f"step {count(account.last_step)}"),
            (account.communicated_at, "a collective"),
            (account.rendezvous_done_at, "the rendezvous"),
        )
        if at is not None
    ]
    at, kind = max(known, default=(None, ""))
    return kind, at


def _ages(found: list[tuple[int, float]]) -> str:
    ages = [age for _, age in found]
    least, most = duration(min(ages)), duration(max(ages))
    return most if len(ages) == 1 or least == most else f"{least} to {most}"


def _alive(view: RunView) -> list[RankAccount]:
    generation = view.generation
    if generation is None:
        return []
    return [each for rank, each in sorted(generation.accounts.items()) if rank not in generation.exits]
