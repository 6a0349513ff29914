"""Table of what all ranks are doing now, grouped: one line for each place of the program, with step, phase, state and
load.

For `everstep doctor`. Pure: evidence and clusters in, lines out. What was not measured is "—"; what a node does not
have is named once, with the reason.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from everstep.analyzer.observations.clusters import Cluster, Clusters
from everstep.analyzer.observations.records import Case, GpuLoad, RankEvidence
from everstep.analyzer.observations.words import fold
from everstep.report.parts.units import NOT_MEASURED, duration, percent, plural

MAX_LINES = 24
_STATES = {"D": "uninterruptible sleep", "T": "stopped", "t": "held by a tracer", "Z": "ended"}
_COLUMNS = ("ranks", "step", "phase", "state", "cpu", "sockets", "doing")


def render_ranks(case: Case, clusters: Clusters) -> list[str]:
    """Empty when there is no evidence of any rank."""
    where = {rank: cluster for cluster in (*clusters.healthy, *clusters.outliers) for rank in cluster.ranks}
    groups: defaultdict[tuple[str, str, str], list[RankEvidence]] = defaultdict(list)
    for evidence in case.ranks:
        groups[evidence.phase, _state(evidence), _doing(evidence, where.get(evidence.rank))].append(evidence)
    ordered = sorted(groups.items(), key=lambda group: (-len(group[1]), group[1][0].rank))
    rows = [_row(phase, state, doing, ranks) for (phase, state, doing), ranks in ordered[:MAX_LINES]]
    if not rows:
        return []
    lines = _table([_COLUMNS, *rows])
    if len(ordered) > MAX_LINES:
        lines.append(f"  ... and {plural(len(ordered) - MAX_LINES, 'group')} more (--json has all)")
    return [*lines, *_gpus(case.ranks), *_links(case.ranks), *_sources(case.ranks)]


def _row(phase: str, state: str, doing: str, ranks: Sequence[RankEvidence]) -> tuple[str, ...]:
    cpu = _span([each.load.cpu_share for each in ranks if each.load is not None], lambda value: percent(value, 0))
    net = _span([each.load.traffic_bytes_s for each in ranks if each.load is not None], _rate)
    steps = sorted({each.step for each in ranks if each.step is not None})
    ages = [each.step_age_s for each in ranks if each.step_age_s is not None]
    step = NOT_MEASURED if not steps else f"{steps[0]:,}" if len(steps) == 1 else f"{steps[0]:,}-{steps[-1]:,}"
    step += f" ({duration(max(ages))} ago)" if ages else ""
    return fold(each.rank for each in ranks), step, phase or NOT_MEASURED, state, cpu, net, doing


def _state(evidence: RankEvidence) -> str:
    """The state of the rank's own process, and the worst of its children's."""
    if not evidence.states:
        return NOT_MEASURED
    letters = [letter for _, letter in evidence.states]
    text = f"{letters[0]} {_STATES[letters[0]]}" if letters[0] in _STATES else letters[0]
    bad = sorted({letter for letter in letters[1:] if letter in "DTt"})
    return text + "".join(f", a child {letter} {_STATES[letter]}" for letter in bad)


def _doing(evidence: RankEvidence, cluster: Cluster | None) -> str:
    if cluster is not None:
        return f"{cluster.activity}: {cluster.innermost}" + (f" at {cluster.place}" if cluster.place else "")
    if evidence.native:
        first = evidence.native[0]
        return f"no Python stack; the kernel has it in {first.call or f'state {first.state}'}"
    return "no stack"


def _span(values: Sequence[float | None], text: Callable[[float], str]) -> str:
    known = sorted(value for value in values if value is not None)
    if not known:
        return NOT_MEASURED
    low, high = text(known[0]), text(known[-1])
    return low if low == high else f"{low} to {high}"


def _rate(value: float) -> str:
    for unit in ("B/s", "KB/s", "MB/s"):
        if value < 1000:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} GB/s"


def _gpus(ranks: Iterable[RankEvidence]) -> list[str]:
    return [f"gpu       rank {each.rank}: {_gpu(gpu)}" for each in ranks for gpu in each.gpus][:MAX_LINES]


def _gpu(gpu: GpuLoad) -> str:
    if gpu.why:
        return f"GPU {gpu.index}: {gpu.why}"
    memory = NOT_MEASURED
    if gpu.used_bytes is not None and gpu.total_bytes:
        memory = f"{gpu.used_bytes / 2**30:.1f} of {gpu.total_bytes / 2**30:.0f} GiB"
    clock = NOT_MEASURED if gpu.clock_mhz is None else f"{gpu.clock_mhz} MHz"
    power = NOT_MEASURED if gpu.power_w is None else f"{gpu.power_w:.0f} W"
    heat = NOT_MEASURED if gpu.temperature_c is None else f"{gpu.temperature_c} C"
    return f"GPU {gpu.index} use {percent(gpu.use_share, 0)}, memory {memory}, {clock}, {power}, {heat}"


def _links(ranks: Iterable[RankEvidence]) -> list[str]:
    """Once per node: ranks of one node have the same figures."""
    seen = {tuple(sorted(each.links.items())): each.rank for each in reversed(list(ranks)) if each.links}
    lines = []
    for links, rank in sorted(seen.items(), key=lambda item: item[1])[:MAX_LINES]:
        moving = [f"{name} {_rate(rate)}" for name, rate in links if rate] or ["no traffic"]
        lines.append(f"links     node of rank {rank}: {', '.join(moving)}")
    return lines


def _sources(ranks: Iterable[RankEvidence]) -> list[str]:
    """List what could not be looked at, and what was used instead; each reason once for all its ranks."""
    lines: list[str] = []
    for title in ("unsupported", "unavailable"):
        by_reason: defaultdict[str, list[int]] = defaultdict(list)
        for evidence in ranks:
            for why in getattr(evidence, title):
                by_reason[_without_numbers(why)].append(evidence.rank)
        lines += [f"{title}  ranks {fold(found)}: {why}" for why, found in by_reason.items()]
    return lines[:MAX_LINES]


def _without_numbers(why: str) -> str:
    """Without the file of the evidence and the process: else no two ranks have the same reason."""
    words = why.split(" ")
    if words[0].endswith(".json:"):
        words = words[1:]
    if words[:2] == ["stack", "of"] and len(words) > 2 and words[2].rstrip(":").isdigit():
        words = ["stack:", *words[3:]]
    return " ".join(words)


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
