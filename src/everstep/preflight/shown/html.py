"""Reports as one self-contained HTML file: findings first, then every result, with a filter. Pure; fetches nothing."""

from collections.abc import Sequence
from html import escape

from everstep.preflight.result import Judgement, Report, Result
from everstep.preflight.shown.text import SIGNS, number, verdict_sentence
from everstep.report.parts.units import duration, stamp

# Okabe-Ito, as on the terminal; never colour alone: each verdict has its sign and its word.
_STYLE = """
:root { color-scheme: light dark; --line: #8884; --dim: #777; --bad: #d55e00; --warn: #e69f00; --ok: #009e73; }
body { font: 14px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 1200px; padding: 0 1rem; }
h1 { font-size: 1.3rem; margin: 1.5rem 0 .2rem; } h2 { font-size: 1rem; margin: 1.4rem 0 .3rem; }
p { margin: .2rem 0; } .dim { color: var(--dim); }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .2rem .6rem .2rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
td.n { white-space: nowrap; }
td.name { font-family: ui-monospace, monospace; font-size: 13px; overflow-wrap: anywhere; }
.bad { color: var(--bad); font-weight: 600; } .warn { color: var(--warn); font-weight: 600; } .ok { color: var(--ok); }
.noted, .unsupported { color: var(--dim); }
details summary { cursor: pointer; } label { margin-right: 1rem; } @media print { form { display: none; } }
"""
_SCRIPT = """
for (const box of document.querySelectorAll('input[data-verdict]')) box.addEventListener('change', () => {
  const rows = document.querySelectorAll('tr[data-verdict="' + box.dataset.verdict + '"]');
  for (const row of rows) row.hidden = !box.checked;
});
"""
_ORDER = (Judgement.BAD, Judgement.WARN, Judgement.OK, Judgement.NOTED, Judgement.UNSUPPORTED)


def render_html(reports: Sequence[Report]) -> str:
    title = escape("; ".join(verdict_sentence(report) for report in reports))
    parts = [
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>',
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head><body>',
        _filter(),
        *(_report(report) for report in reports),
        f"<script>{_SCRIPT}</script></body></html>\n",
    ]
    return "\n".join(parts)


def _filter() -> str:
    boxes = "".join(
        f'<label><input type="checkbox" checked data-verdict="{verdict}"> '
        f'<span class="{verdict}">{SIGNS[verdict]} {verdict}</span></label>'
        for verdict in _ORDER
    )
    return f"<form>{boxes}</form>"


def _report(report: Report) -> str:
    head = f"{report.level} check, {duration(report.took_s)}, {stamp(report.at)}, kind {report.kind}"
    counts = ", ".join(f"{report.count(v)} {v}" for v in _ORDER if report.count(v))
    found = [r for v in (Judgement.BAD, Judgement.WARN) for r in report.results if r.verdict is v]
    parts = [
        f"<section><h1>{escape(verdict_sentence(report))}</h1>",
        f'<p class="dim">{escape(head)}; everstep {escape(report.everstep_version)}</p>',
        f"<p>{len(report.results)} metrics: {counts}</p>",
    ]
    if found:
        parts.append("<h2>What to look at</h2>" + _table(found))
    for category in dict.fromkeys(result.category for result in report.results):
        rows = [result for result in report.results if result.category == category]
        parts.append(
            f"<details open><summary><b>{escape(category)}</b> ({len(rows)})</summary>{_table(rows)}</details>"
        )
    return "\n".join([*parts, "</section>"])


def _table(results: Sequence[Result]) -> str:
    head = "".join(f"<th>{title}</th>" for title in ("", "name", "value", "compared with", "why", "measured by"))
    return f"<table><tr>{head}</tr>{''.join(_row(result) for result in results)}</table>"


def _row(result: Result) -> str:
    compared = f"{result.baseline_from}: {number(result.baseline, result.unit)}" if result.baseline_from else ""
    verdict = result.verdict.value
    sign = f'<td class="n {verdict}">{SIGNS[result.verdict]} {verdict}</td>'
    value = f'<td class="n">{escape(number(result.value, result.unit))}</td>'
    rest = "".join(f"<td>{escape(text)}</td>" for text in (compared, result.why, result.how))
    return f'<tr data-verdict="{verdict}">{sign}<td class="name">{escape(result.name)}</td>{value}{rest}</tr>'
