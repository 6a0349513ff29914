"""Content of a report, once for all of its forms: sentences and tables of plain text. Pure."""

import msgspec

from everstep.report.parts.units import NOT_MEASURED, count, duration, percent, plural, stamp
from everstep.report.period.gather import ettr_of
from everstep.report.period.schema import Advice, Class, Disturbance, Period, RunPart, Slice
from everstep.report.picture.costs import GROUPS

MAX_INCIDENTS = 20
MAX_RUNS = 40


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """`right`: from this column on the cells are numbers. `empty`: said where there is no row."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right: int = 99
    empty: str = ""


def headline(period: Period) -> str:
    disturbed = plural(len(period.incidents), "incident") if period.incidents else "no incident"
    runs = plural(len(period.runs), "run")
    return f"goodput {percent(period.ettr)} over {rank_time(period.rank_s)} of {runs}; {disturbed}"


def facts(period: Period) -> list[str]:
    length_s = period.until - period.since
    found = [f"{stamp(period.since)} to {stamp(period.until)} ({duration(length_s)}), {period.where}"]
    if period.mtbf_h is not None:
        halves = ""
        if period.mtbf_before_h is not None and period.mtbf_after_h is not None:
            halves = f"; first half {hours(period.mtbf_before_h)}, second half {hours(period.mtbf_after_h)}"
        found.append(f"an incident every {hours(period.mtbf_h)} of running{halves}")
    drilled_s = sum(part.drill_rank_s for part in period.runs)
    if drilled_s > 0.0:
        found.append(f"{rank_time(drilled_s)} of it went into drills, which are not among the incidents")
    sampled = [part.name for part in period.runs if part.sampled_ranks]
    if sampled:
        found.append(f"of {', '.join(sampled[:3])} four ranks stand for all")
    return found


def sections(period: Period) -> list[Section]:
    return [
        _goodput(period),
        _trend(period.slices),
        _advice(period.advice, period.rank_s),
        _offenders(period.offenders),
        _classes(period.classes),
        _incidents(period.incidents),
        _runs(period.runs),
        *([_unread(period)] if period.unread else []),
    ]


def rank_time(seconds: float) -> str:
    """Time of many ranks: in hours, because days of a rank are hard to picture."""
    if seconds < 60.0:
        return f"{seconds:.3g} rank-seconds"
    if seconds < 3600.0:
        return f"{seconds / 60.0:.3g} rank-minutes"
    return f"{seconds / 3600.0:,.3g} rank-hours" if seconds < 3.6e6 else f"{seconds / 3600.0:,.0f} rank-hours"


def hours(value: float | None) -> str:
    return NOT_MEASURED if value is None else duration(3600.0 * value)


def _goodput(period: Period) -> Section:
    rows = tuple(
        (name, rank_time(period.seconds[name]), percent(period.seconds[name] / period.rank_s, 2))
        for name in GROUPS
        if period.rank_s > 0.0
    )
    return Section(title="Goodput by cause", head=("", "time", "share"), rows=rows, right=1, empty="Nothing ran.")


def _trend(slices: tuple[Slice, ...]) -> Section:
    """Where the figure is missing, nothing ran."""
    rows = []
    for each in slices:
        lost = {name: seconds for name, seconds in each.seconds.items() if name != "productive" and seconds > 0.0}
        most = max(lost, key=lambda name: lost[name], default="")
        share = f"{most} {percent(lost[most] / sum(each.seconds.values()))}" if most else ""
        if each.ettr is not None:
            rows.append((stamp(each.begin), percent(each.ettr), share, count(each.num_incidents)))
    head = ("from (UTC)", "goodput", "most of the rest", "incidents")
    return Section(title="Trend", head=head, rows=tuple(rows), right=3, empty="Nothing ran.")


def _advice(advice: tuple[Advice, ...], rank_s: float) -> Section:
    rows = tuple(
        (each.what, each.because, rank_time(each.rank_s), f"{100 * each.rank_s / rank_s:.1f} points") for each in advice
    )
    return Section(
        title="What would help most",
        head=("", "because", "at most", ""),
        rows=rows,
        right=2,
        empty="Nothing stands out: no cause took a thousandth of the time.",
    )


def _offenders(offenders: tuple[Class, ...]) -> Section:
    rows = tuple(
        (each.key, str(each.number), ", ".join(each.codes), rank_time(each.rank_s), each.newest) for each in offenders
    )
    return Section(
        title="Machines that were blamed more than once",
        head=("machine", "incidents", "codes", "cost", "newest"),
        rows=rows,
        empty="None.",
    )


def _classes(classes: tuple[Class, ...]) -> Section:
    rows = tuple(
        (
            each.key or "none",
            each.name,
            str(each.number),
            duration(each.lost_s),
            count(each.lost_steps),
            rank_time(each.rank_s),
        )
        for each in classes
    )
    head = ("code", "", "number", "lost", "steps", "cost")
    return Section(title="Incidents by class", head=head, rows=rows, right=2, empty="No incident in this period.")


def _incidents(incidents: tuple[Disturbance, ...]) -> Section:
    rows = tuple(
        (
            f"{each.id} of {each.run}",
            stamp(each.at)[:-4],
            f"{each.code} {each.sentence}".strip(),
            each.outcome or "open",
            duration(each.lost_s),
        )
        for each in incidents[:MAX_INCIDENTS]
    )
    more = f" (the newest {MAX_INCIDENTS} of {len(incidents)})" if len(incidents) > MAX_INCIDENTS else ""
    head = ("", "when (UTC)", "what", "outcome", "lost")
    return Section(title=f"Incidents{more}", head=head, rows=rows, right=4, empty="None.")


def _runs(runs: tuple[RunPart, ...]) -> Section:
    rows = []
    for part in runs[:MAX_RUNS]:
        ettr = ettr_of({name: sum(each[name] for each in part.seconds) for name in GROUPS})
        cells = (part.name, part.program, part.status, count(part.world_size), count(part.step))
        rows.append((*cells, str(len(part.incidents)), percent(ettr)))
    more = f" (the newest {MAX_RUNS} of {len(runs)})" if len(runs) > MAX_RUNS else ""
    head = ("run", "program", "status", "ranks", "step", "incidents", "goodput")
    return Section(title=f"Runs{more}", head=head, rows=tuple(rows), right=3, empty="No run in this period.")


def _unread(period: Period) -> Section:
    rows = tuple((each.name, each.why) for each in period.unread)
    return Section(title="Not read", head=("run", "why"), rows=rows)
