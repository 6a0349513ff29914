"""One inspection of this node: runs the checks, judges what they found, and makes the report. Called by `everstep
check`.
"""

import time
from collections.abc import Sequence

import msgspec

from everstep.preflight.identity import machine_kind, node_name
from everstep.preflight.judge import Expectation, by_expectations, by_limits, judge_against
from everstep.preflight.result import Judgement, Report, Result
from everstep.preflight.running.runner import OnProgress, run_checks
from everstep.preflight.settings import Settings
from everstep.version import __version__


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """The inspection that the user asked for."""

    settings: Settings
    checks: tuple[str, ...]
    level: str = "quick"
    kind: str = ""  # instead of the machine's own
    expectations: tuple[Expectation, ...] = ()
    baselines: tuple[Report, ...] = ()


def inspect_node(wanted: Wanted, on_progress: OnProgress) -> Report:
    """Ctrl-C ends it early, and what was measured by then is reported."""
    at, begun = time.time(), time.monotonic()
    results: list[Result] = []
    interrupted = False
    try:
        for result in run_checks(wanted.checks, wanted.settings, on_progress):
            results.append(result)
    except KeyboardInterrupt:
        interrupted = True
    return make_report(wanted, results, at=at, took_s=time.monotonic() - begun, interrupted=interrupted)


def make_report(wanted: Wanted, results: Sequence[Result], *, at: float, took_s: float, interrupted: bool) -> Report:
    judged = by_expectations(by_limits(results), () if interrupted else wanted.expectations)
    report = Report(
        everstep_version=__version__,
        node=node_name(),
        kind=wanted.kind or machine_kind(wanted.settings.root),
        level=wanted.level,
        at=at,
        took_s=took_s,
        results=tuple(judged),
        interrupted=interrupted,
    )
    alike = [baseline for baseline in wanted.baselines if baseline.kind == report.kind]
    if alike:
        return judge_against(report, alike, are_trusted=True)
    if not wanted.baselines:
        return report
    kinds = "; ".join(sorted({baseline.kind for baseline in wanted.baselines}))
    unused = Result(
        name="baseline.kind", value=report.kind, verdict=Judgement.WARN, baseline=kinds, baseline_from="baselines",
        how="--baseline",
        why="no baseline is of this kind of machine, so nothing was compared (--kind names it otherwise)",
    )  # fmt: skip
    return msgspec.structs.replace(report, results=(*report.results, unused))
