"""What bench/faults.py prints and writes: tables and summaries of what was measured. Pure but for `write`."""

import dataclasses
import json
import os
import platform
from pathlib import Path

from matrix.faults_matrix import Fault, Results
from measuring.figures import NEVER, quantile, seconds, table


def machine() -> dict[str, object]:
    return {
        "cpus": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load": os.getloadavg(),
    }


def write(path: Path | None, document: dict[str, object]) -> None:
    if path is not None:
        path.write_text(json.dumps(document, indent=1) + "\n")


FAULT_HEADINGS = (
    "fault",
    "layout",
    "rank",
    "detected",
    "verdict",
    "suspects",
    "right",
    "recovered",
    "lost",
    "how it ended",
)


def fault_row(fault: Fault) -> tuple[str, ...]:
    right = "rank" if fault.right_rank else "group" if fault.right_group else "no"
    return (
        fault.kind,
        fault.layout,
        str(fault.rank),
        seconds(fault.detect_s),
        fault.code or "—",
        ",".join(map(str, fault.ranks)) or "—",
        "—" if fault.right_rank is None or not fault.code else right,
        seconds(fault.recover_s),
        "—" if fault.lost_steps is None else str(fault.lost_steps),
        fault.outcome or fault.why[:60],
    )


def matrix_report(results: Results) -> str:
    """All faults, the same by kind, and the figures that the contract names."""
    faults = results.faults
    kinds = sorted({(fault.kind, fault.layout) for fault in faults})
    rows = [_kind_row([f for f in faults if (f.kind, f.layout) == key]) for key in kinds]
    headings = (
        "fault",
        "layout",
        "n",
        "detected",
        "median",
        "p95",
        "codes",
        "right rank",
        "or group",
        "well",
        "recovery",
        "lost",
    )
    lines = [
        table(FAULT_HEADINGS, [fault_row(fault) for fault in faults]),
        "",
        table(headings, rows),
        "",
        *summary(results),
    ]
    lines += [f"  {f.kind} {f.layout} seed {f.seed} rank {f.rank}: {f.why}" for f in faults if f.why]
    lines += [
        f"  {f.kind} {f.layout} seed {f.seed} rank {f.rank}: {f.sentence}" for f in faults if f.right_group is False
    ]
    return "\n".join(lines)


def _kind_row(faults: list[Fault]) -> tuple[str, ...]:
    times = [NEVER if fault.detect_s is None else fault.detect_s for fault in faults]
    judged = [fault for fault in faults if fault.right_rank is not None]
    recoveries = [fault.recover_s for fault in faults if fault.recover_s is not None]
    lost = [fault.lost_steps for fault in faults if fault.lost_steps is not None]
    return (
        faults[0].kind,
        faults[0].layout,
        str(len(faults)),
        str(sum(time != NEVER for time in times)),
        seconds(quantile(times, 0.5)),
        seconds(quantile(times, 0.95)),
        " ".join(sorted({fault.code for fault in faults if fault.code})) or "—",
        _share([bool(fault.right_rank) for fault in judged]),
        _share([bool(fault.right_group) for fault in judged]),
        _share([fault.ended_well for fault in faults]),
        seconds(quantile(recoveries, 0.5)),
        str(max(lost)) if lost else "—",
    )


def summary(results: Results) -> list[str]:
    meant = [fault for fault in results.faults if fault.is_hang and not fault.why.startswith("refused")]
    hangs = [fault for fault in meant if not fault.is_loud]
    times = [NEVER if fault.detect_s is None else fault.detect_s for fault in hangs]
    median, p95, most = quantile(times, 0.5), quantile(times, 0.95), max(times, default=None)
    well = _share([fault.outcome == "recovered" for fault in meant])
    named = _share([bool(fault.right_rank) for fault in meant])
    grouped = _share([bool(fault.right_group) for fault in meant])
    spread = f"{seconds(median)} (median), {seconds(p95)} (p95), {seconds(most)} (most)"
    lines = [f"hang classes: {len(hangs)} hangs, detected in {spread}; {len(meant) - len(hangs)} more ended loudly"]
    lines += [f"right rank {named}, right rank or group {grouped}, recovered {well}"]
    lines += [f"false alarms between the faults: {len(results.false_alarms)}"]
    return [*lines, *(f"  {alarm}" for alarm in results.false_alarms)]


def _share(values: list[bool]) -> str:
    return f"{sum(values)}/{len(values)}" if values else "—"


def matrix_document(results: Results) -> dict[str, object]:
    return {
        "benchmark": "faults",
        "machine": machine(),
        "starts": results.num_starts,
        "false_alarms": results.false_alarms,
        "faults": [
            {**dataclasses.asdict(f), "right_rank": f.right_rank, "right_group": f.right_group} for f in results.faults
        ],
    }
