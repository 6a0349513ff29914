"""The pages of `everstep replay`: one run, or a table of many."""

from collections.abc import Sequence

import msgspec

from everstep.report.foresee.policies import price_lines
from everstep.report.parts.layout import field, table, text_of
from everstep.report.parts.units import duration, plural, short_stamp
from everstep.simulate.price import Price
from everstep.simulate.whatif import Choice, Difference, Timing, WhatIf

_MAX_SHOWN = 20


class Replayed(msgspec.Struct, frozen=True, kw_only=True):
    run: str
    began_at: float
    changes: dict[str, tuple[str, str]]  # setting of the policy -> recorded, other
    what_if: WhatIf
    prices: tuple[Price, ...] = ()  # of this run's standstills, under the other policy and under rules beside it


def replay_page(replayed: Replayed) -> str:
    found = replayed.what_if
    lines = [_headline(replayed), ""]
    lines += [line for key, (was, would) in replayed.changes.items() for line in field(key, f"{was} -> {would}", 24)]
    if not replayed.changes:
        lines.append("  the policies are the same")
    if found.num_other_version:
        what = plural(found.num_other_version, "record")
        lines += ["", f"Another version wrote this journal: at {what} this one decides otherwise with the same policy."]
        lines.append("Both sides below are what this version decides.")
    followed = [each for each in found.differences if each.is_followed]
    asked = [each for each in found.differences if not each.is_followed]
    for difference in followed[:_MAX_SHOWN]:
        lines += ["", *_difference(difference)]
    lines += ["", *_end(found)]
    for difference in asked[:_MAX_SHOWN]:
        lines += ["", *_difference(difference)]
    if len(followed) > _MAX_SHOWN or len(asked) > _MAX_SHOWN:
        lines += ["", f"({plural(len(found.differences), 'difference')} in all; --json has them)"]
    if found.timings:
        lines += ["", "the same decisions, with other times", *_timings(found.timings)]
    if priced := price_lines(replayed.prices):
        lines += ["", "what patience would have cost, over this run's own standstills (everstep policies)", *priced]
    return text_of(lines)


def replay_table(replays: Sequence[Replayed], failed: Sequence[tuple[str, str]], days: float) -> str:
    """One line per run."""
    num_incidents = sum(each.what_if.num_incidents for each in replays)
    num_changed = sum(each.what_if.diverged is not None for each in replays)
    head = f"{plural(len(replays), 'run')} of the last {days:g} days, {plural(num_incidents, 'incident')}: "
    lines = [f"{head}{num_changed} would have gone another way"]
    rows = [
        [each.run, short_stamp(each.began_at), f"{each.what_if.num_incidents}", _first(each.what_if)]
        for each in replays
    ]
    if rows:
        lines += ["", *table(["run", "began", "incidents", "first other decision"], rows, indent="  ")]
    lines += [f"  {name}: {why}" for name, why in failed]
    return text_of(lines)


def _headline(replayed: Replayed) -> str:
    found = replayed.what_if
    what = f"{plural(found.num_records, 'record')}, {plural(found.num_incidents, 'incident')}"
    if found.diverged is not None:
        return f"run {replayed.run} would have gone another way at record {found.diverged.seq} ({what})"
    if found.differences:
        return f"run {replayed.run} would have gone the same way, in other words ({what})"
    return f"run {replayed.run} would have gone the same way ({what})"


def _difference(difference: Difference) -> list[str]:
    where = f"record {difference.seq}, {short_stamp(difference.at)}"
    incident = f", {difference.incident}" if difference.incident else ""
    kind = "" if difference.changes_world else ": only in other words"
    return [
        f"{where}{incident}{kind}",
        *_choice("was", difference.was),
        *_choice("would", difference.would),
    ]


def _choice(name: str, choice: Choice) -> list[str]:
    lines = field(name, choice.chosen, 8)
    lines += field("", f"why: {choice.why}", 8)
    return lines + (field("", f"does: {', '.join(choice.does)}", 8) if choice.does else [])


def _end(found: WhatIf) -> list[str]:
    if found.diverged is None:
        return ["Every event of the journal is an answer to what this policy would have done, too."]
    lines = [
        f"From record {found.diverged.seq} on the journal answers what was done, and not what would have been.",
    ]
    if any(not each.is_followed for each in found.differences):
        lines.append("What follows was asked in the situations that were recorded, one by one:")
    elif found.num_asked:
        lines.append(f"Asked in each of the {found.num_asked} situations after it, this policy decides the same.")
    return lines


def _first(found: WhatIf) -> str:
    if found.diverged is None:
        return "none" if not found.differences else "none; in other words"
    return f"record {found.diverged.seq}: {found.diverged.would.chosen} instead of: {found.diverged.was.chosen}"


def _timings(timings: Sequence[Timing]) -> list[str]:
    rows = [[each.what, _time(each), f"{each.count} times"] for each in timings]
    return table(["what", "was -> would be", ""], rows, indent="  ")


def _time(timing: Timing) -> str:
    if timing.what.startswith("timer "):
        later = "later" if timing.would_s > 0 else "earlier"
        return f"{duration(abs(timing.would_s))} {later}"
    return f"{duration(timing.was_s)} -> {duration(timing.would_s)}"
