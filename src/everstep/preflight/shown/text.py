"""A report as text: first what is wrong, then one line per category, on demand every result. Pure."""

from collections.abc import Iterable, Sequence

from everstep.preflight.result import Judgement, Report, Result, Value
from everstep.report.parts.ansi import PLAIN, Paint, Style, printable
from everstep.report.parts.layout import table, text_of
from everstep.report.parts.units import NOT_MEASURED, duration, plural, stamp

SIGNS = {
    Judgement.OK: "✓", Judgement.WARN: "!", Judgement.BAD: "✗", Judgement.NOTED: "·", Judgement.UNSUPPORTED: "—",
}  # fmt: skip
_PAINTS = {Judgement.OK: Paint.GREEN, Judgement.WARN: Paint.ORANGE, Judgement.BAD: Paint.RED}
_ALLOWED_BY_OPERATOR = ("ebpf",)
_ORDER = (Judgement.BAD, Judgement.WARN, Judgement.OK, Judgement.NOTED, Judgement.UNSUPPORTED)


def render_report(report: Report, style: Style = PLAIN, *, every: bool = False) -> str:
    lines = [_head(report, style), ""]
    for verdict in (Judgement.BAD, Judgement.WARN):
        lines += [line for r in report.results if r.verdict is verdict for line in _finding(r, style)]
    if any(r.verdict in (Judgement.BAD, Judgement.WARN) for r in report.results):
        lines.append("")
    lines += _categories(report.results, style)
    if every:
        lines += ["", *_all(report.results, style)]
    else:
        lines += _not_allowed(report.results, style)
    lines += ["", _foot(report, every=every)]
    return text_of(lines)


def verdict_sentence(report: Report) -> str:
    bad, warn, node = report.count(Judgement.BAD), report.count(Judgement.WARN), printable(report.node)
    cut = "; ended early, so what was not reached is not known" if report.interrupted else ""
    if bad:
        return f"{plural(bad, 'thing')} {'is' if bad == 1 else 'are'} bad on {node}{cut}"
    if warn:
        return f"nothing is bad on {node}, {plural(warn, 'thing')} worth a look{cut}"
    return f"nothing is wrong on {node}, as far as was measured{cut}"


def number(value: Value, unit: str) -> str:
    """Format a value for people: 3 digits, with the unit."""
    if value is None:
        return NOT_MEASURED
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return printable(value) if len(value) <= 60 else printable(value[:57]) + "..."
    if unit == "s":
        return f"{1e6 * value:.3g} us" if 0 < abs(value) < 1e-3 else duration(float(value))
    if unit == "ratio":
        return f"{100 * value:.3g} %"
    if unit in ("bytes", "bytes/s"):
        return _binary(float(value)) + unit.removeprefix("bytes")
    if unit in ("flop/s", "hertz"):
        return _decimal(float(value), {"flop/s": "flop/s", "hertz": "Hz"}[unit])
    text = f"{value:,}" if isinstance(value, int) else f"{value:.3g}"
    return f"{text} {unit}".rstrip()


def _binary(value: float) -> str:
    for name in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1024 or name == "TiB":
            return f"{value:.3g} {name}" if abs(value) < 1000 else f"{value:.0f} {name}"
        value /= 1024
    raise AssertionError


def _decimal(value: float, unit: str) -> str:
    for name in ("", "k", "M", "G", "T"):
        if abs(value) < 1000 or name == "T":
            return f"{value:.3g} {name}{unit}"
        value /= 1000
    raise AssertionError


def _head(report: Report, style: Style) -> str:
    worst = next((v for v in (Judgement.BAD, Judgement.WARN) if report.count(v)), Judgement.OK)
    sentence = style(f"{SIGNS[worst]} {verdict_sentence(report)}", Paint.BOLD, *_paint(worst))
    how_long = f"{report.level} check in {duration(report.took_s)}, {stamp(report.at)}"
    return f"{sentence}\n{style(f'{how_long}, kind {printable(report.kind)}', Paint.DIM)}"


def _finding(result: Result, style: Style) -> Iterable[str]:
    sign = style(SIGNS[result.verdict], *_paint(result.verdict))
    value = number(result.value, result.unit)
    compared = f" ({result.baseline_from}: {number(result.baseline, result.unit)})" if result.baseline_from else ""
    yield f"{sign} {printable(result.name)}  {value}{compared}"
    yield f"    {printable(result.why)}"
    if result.how:
        yield style(f"    measured by: {printable(result.how)}", Paint.DIM)


def _categories(results: Sequence[Result], style: Style) -> list[str]:
    names = list(dict.fromkeys(result.category for result in results))
    rows = []
    for name in names:
        counts = [sum(r.category == name and r.verdict is verdict for r in results) for verdict in _ORDER]
        rows.append([name, *(str(count) if count else "" for count in counts)])
    return table(("category", "bad", "warn", "ok", "noted", "unsupported"), rows, style)


def _not_allowed(results: Sequence[Result], style: Style) -> list[str]:
    """List what a run could observe here if the operator allowed it, and what that takes. The rest is in `-v` only."""
    missing = [r for r in results if r.category in _ALLOWED_BY_OPERATOR and r.verdict is Judgement.UNSUPPORTED]
    if not missing:
        return []
    sign = SIGNS[Judgement.UNSUPPORTED]
    lines = [f"{sign} {printable(r.name)}  {printable(r.why)}" for r in missing]
    return ["", style("A run here works without these:", Paint.DIM), *lines]


def _all(results: Sequence[Result], style: Style) -> list[str]:
    rows = []
    for r in results:
        compared = f"{r.baseline_from}: {number(r.baseline, r.unit)}" if r.baseline_from else ""
        why = r.why if r.verdict is not Judgement.OK else ""
        rows.append([SIGNS[r.verdict], printable(r.name), number(r.value, r.unit), compared, printable(why)])
    return table(("", "name", "value", "compared with", ""), rows, style)


def _foot(report: Report, *, every: bool) -> str:
    counts = ", ".join(f"{report.count(v)} {v}" for v in _ORDER if report.count(v))
    hint = "" if every else "   -v shows each"
    return f"{plural(len(report.results), 'metric')}: {counts}{hint}"


def _paint(verdict: Judgement) -> tuple[Paint, ...]:
    return (_PAINTS[verdict],) if verdict in _PAINTS else ()
