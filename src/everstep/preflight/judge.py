"""Judges results: by fixed limits, by what the user expects, by a baseline, and by the other nodes of the same kind.

Pure: values in, values out. A verdict only gets worse on the way, or becomes known (`noted` to `ok`). What could not be
measured stays unsupported, unless the user expects a value of it: then it is bad that it cannot be confirmed.
"""

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

import msgspec

from everstep.preflight.limits import LIMITS
from everstep.preflight.result import Better, Judgement, Report, Result, Value

_WARN_AT = 3.0  # robust standard deviations from the others' median
_BAD_AT = 6.0
_ALL_LOST = 0.8  # a value that has lost this share is bad, however wide its tolerance
_BUSY_PRESSURE = 20.0  # percent of the last minute in which work waited for a processor
_TAIL_TOLERANCE = 1.0  # figures with more than this are tails (slowest, 99th percentile): one sample proves nothing
_SEVERITY = {
    Judgement.UNSUPPORTED: 0, Judgement.NOTED: 0, Judgement.OK: 1, Judgement.WARN: 2, Judgement.BAD: 3,
}  # fmt: skip


def by_limits(results: Iterable[Result]) -> list[Result]:
    return [_by_limit(result) for result in results]


def _by_limit(result: Result) -> Result:
    if result.verdict is Judgement.UNSUPPORTED:
        return result
    limit = next((limit for limit in LIMITS if fnmatchcase(result.name, limit.pattern)), None)
    if limit is None or (limit.warn is None and limit.bad is None):
        return result
    for bound, verdict in ((limit.bad, Judgement.BAD), (limit.warn, Judgement.WARN)):
        if bound is not None and _beyond(result.value, bound, limit.better):
            return worse(result, verdict, limit.because, bound, "limit")
    bound = limit.warn if limit.warn is not None else limit.bad
    return worse(result, Judgement.OK, "", bound, "limit")


def _beyond(value: Value, bound: Value, better: Better) -> bool:
    if better is Better.SAME:
        return value != bound
    number = math.inf if value == "unlimited" else value
    if not _is_number(number) or not _is_number(bound):
        return False
    assert isinstance(number, int | float)
    assert isinstance(bound, int | float)
    if math.isnan(number):
        return True
    return number < bound if better is Better.HIGHER else number > bound


def worse(result: Result, verdict: Judgement, why: str, baseline: Value, source: str) -> Result:
    """`result` with this verdict if it is the worse one; a first comparison is kept even when it is fine."""
    known = _SEVERITY[result.verdict]
    if _SEVERITY[verdict] > known or (known == 1 and verdict is Judgement.OK and not result.baseline_from):
        return msgspec.structs.replace(
            result, verdict=verdict, why=why or result.why, baseline=baseline, baseline_from=source
        )
    return result


class Expectation(msgspec.Struct, frozen=True, kw_only=True):
    """One fact that the user knows about this node: `gpu.count=8`, `nic.*.mtu>=9000`."""

    pattern: str
    sign: str  # "=", ">=", "<="
    value: Value


def by_expectations(results: Sequence[Result], expectations: Iterable[Expectation]) -> list[Result]:
    judged = list(results)
    for expectation in expectations:
        hits = [i for i, result in enumerate(judged) if fnmatchcase(result.name, expectation.pattern)]
        for i in hits:
            judged[i] = _by_expectation(judged[i], expectation)
        if not hits:
            judged.append(_absent(expectation))
    return judged


def _by_expectation(result: Result, expected: Expectation) -> Result:
    wanted = f"{expected.sign} {expected.value}"
    if result.verdict is Judgement.UNSUPPORTED:
        why = f"expected {wanted}, and it cannot be measured: {result.why}"
        return worse(result, Judgement.BAD, why, expected.value, "expected")
    better = {"=": Better.SAME, ">=": Better.HIGHER, "<=": Better.LOWER}[expected.sign]
    if _beyond(result.value, expected.value, better):
        return worse(result, Judgement.BAD, f"expected {wanted}", expected.value, "expected")
    return worse(result, Judgement.OK, "", expected.value, "expected")


def _absent(expected: Expectation) -> Result:
    return Result(
        name=expected.pattern, value=None, verdict=Judgement.BAD, baseline=expected.value, baseline_from="expected",
        why="expected, and there is nothing of this name on the node", how="--expect",
    )  # fmt: skip


def among_nodes(reports: Sequence[Report]) -> list[Report]:
    """Each report judged against the others of its kind. A node alone of its kind stays as it is."""
    judged = []
    for report in reports:
        others = [other for other in reports if other is not report and other.kind == report.kind]
        judged.append(judge_against(report, others, are_trusted=False) if others else report)
    return judged


def judge_against(report: Report, others: Sequence[Report], *, are_trusted: bool) -> Report:
    """`are_trusted`: the others are a baseline; else they are peers, of which any may be wrong itself."""
    source = _source(others, are_trusted=are_trusted)
    busy = why_busy(report.results)
    known = [{result.name: result for result in other.results} for other in others]
    alike = [arithmetic_kind(other.results) == arithmetic_kind(report.results) for other in others]
    judged = []
    for result in report.results:
        rows = [names[result.name] for names in known if result.name in names]
        if result.name.endswith("digest") and result.category != "cpu":
            rows = [
                names[result.name] for names, same in zip(known, alike, strict=True) if same and result.name in names
            ]
        judged.append(_against(result, rows, source, busy, are_trusted=are_trusted))
    judged += _missing(report, others, source)
    return msgspec.structs.replace(report, results=tuple(judged))


def arithmetic_kind(results: Iterable[Result]) -> tuple[Value, ...]:
    """Two nodes must compute the same bits only if all of this is the same."""
    found = {result.name: result.value for result in results}
    return tuple(found.get(name) for name in ("cpu.model", "cpu.flags_digest", "software.torch", "software.machine"))


def _source(others: Sequence[Report], *, are_trusted: bool) -> str:
    if len(others) == 1:
        return f"{'baseline of ' if are_trusted else ''}node {others[0].node}"
    return f"median of {len(others)} {'baselines' if are_trusted else 'other nodes'}"


def why_busy(results: Iterable[Result]) -> str:
    """Why speeds of this node prove nothing: others were using it when the check began. Empty when it was quiet."""
    found = {result.name: result.value for result in results}
    pressure, load, cpus = (found.get(n) for n in ("kernel.pressure.cpu.some.avg60", "cpu.load_1m", "cpu.count"))
    if isinstance(pressure, float):
        return f"CPU pressure was {pressure:.0f} % before it began" if pressure > _BUSY_PRESSURE else ""
    if isinstance(load, float) and isinstance(cpus, int) and load > cpus:
        return f"{load:.0f} processes wanted its {cpus} CPUs before it began"
    return ""


def _against(result: Result, rows: Sequence[Result], source: str, busy: str, *, are_trusted: bool) -> Result:
    values = [row.value for row in rows if row.verdict is not Judgement.UNSUPPORTED and row.value is not None]
    if not values or rows[0].better is Better.ANY:
        return result
    if result.verdict is Judgement.UNSUPPORTED:
        if 2 * len(values) <= len(rows):
            return result
        return worse(result, Judgement.WARN, f"measured there, and not here: {result.why}", values[0], source)
    if result.better is Better.ANY:
        return result
    if result.better is Better.SAME:
        return _against_same(result, values, source, are_trusted=are_trusted)
    numbers = [float(value) for value in values if isinstance(value, int | float)]
    if not numbers or not _is_number(result.value):
        return result
    return against_numbers(result, numbers, source, busy)


def _against_same(result: Result, values: Sequence[Value], source: str, *, are_trusted: bool) -> Result:
    votes = Counter(values if are_trusted else [*values, result.value])
    (top, most), *rest = votes.most_common()
    verdict = Judgement.BAD if result.tolerance == 0 else Judgement.WARN
    if rest and rest[0][1] == most:
        why = f"differs between nodes ({len(votes)} values, none has a majority): which is right is not known"
        return worse(result, verdict, why, next(value for value in values if value != result.value), source)
    if result.value == top:
        return worse(result, Judgement.OK, "", top, source)
    return worse(result, verdict, f"differs from {source}", top, source)


def against_numbers(result: Result, numbers: list[float], source: str, busy: str = "") -> Result:
    """A number against those that others (or the past) gave for it. `busy`: why a slow one is no proof."""
    assert isinstance(result.value, int | float)
    middle = statistics.median(numbers)
    lost = (middle - result.value) * (1 if result.better is Better.HIGHER else -1)
    if not lost > 0 and not math.isnan(lost):
        return worse(result, Judgement.OK, "", middle, source)
    if middle == 0:
        return worse(result, Judgement.WARN, f"there it is zero ({source})", middle, source)
    spread = 1.4826 * statistics.median(abs(number - middle) for number in numbers)
    score = lost / max(spread, result.tolerance * abs(middle) / _WARN_AT, 1e-12)
    share = lost / abs(middle)
    gone = result.better is Better.HIGHER and share >= _ALL_LOST
    verdict = Judgement.BAD if score > _BAD_AT or gone else Judgement.WARN if score > _WARN_AT else Judgement.OK
    direction = "below" if result.better is Better.HIGHER else "above"
    why = "" if verdict is Judgement.OK else f"{100 * share:.0f} % {direction} the {source}"
    if verdict is Judgement.BAD and busy:
        verdict, why = Judgement.WARN, f"{why}; the node was not its own: {busy}"
    elif verdict is Judgement.BAD and result.tolerance > _TAIL_TOLERANCE:
        verdict = Judgement.WARN
    return worse(result, verdict, why, middle, source)


def _missing(report: Report, others: Sequence[Report], source: str) -> list[Result]:
    """Devices that most of the others have and this node has not; checks that did not end prove nothing."""
    here = {(r.category, r.device) for r in report.results if r.verdict is not Judgement.UNSUPPORTED}
    unended = {r.category for r in report.results if r.name.endswith(".check")}
    ran = {r.category for r in report.results} - unended
    there: Counter[tuple[str, str]] = Counter()
    for other in others:
        there.update({(r.category, r.device) for r in other.results if r.name.endswith(".present") and r.value is True})
    found = []
    for (category, device), number in sorted(there.items()):
        if category in ran and (category, device) not in here and 2 * number > len(others):
            found.append(
                Result(
                    name=f"{category}.{device}.present", value=False, verdict=Judgement.BAD, baseline=True,
                    baseline_from=source, device=device, how="compared with the devices of others", tolerance=0.0,
                    better=Better.SAME, why=f"{device} is missing: {number} of {len(others)} others have it",
                )
            )  # fmt: skip
    return found


def _is_number(value: Value) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
