"""NCCL with four ranks on one device: our profiler plug-in called by it, who came late, who is missing, and a kill."""

import json
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from statistics import fmean
from typing import Any

from everstep.analyzer.collective.device import family
from gpu_running.part import Report, Request, run
from gpu_running.under_everstep import run as everstep_run

_RANKS = 4
_REPEATS, _DELAYS, _SEED, _LINGER_S = 6, 60, 7, 6.0
_NCCL = {"NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1"}
_PROFILER = "EVERSTEP_NCCL_PROFILER"
_ROUNDS = "slow_round_s = 2.0"
_PATIENCE = "hang_report_s = 3.0\nhang_outside_s = 6.0\nhang_computing_s = 8.0"
_STEPS, _KILL_AT, _PAUSE_S = 70, 50, 0.2
_GUILTY = [2]


def main(request: Request, report: Report) -> None:
    report.attempt("with the plug-in", lambda: _timed(request, report, "on"))
    report.attempt("a rank that is missing", lambda: _hang(request, report, "missing"))
    report.attempt("a rank that calls something else", lambda: _hang(request, report, "order"))
    report.attempt("a rank that is killed", lambda: _killed(request, report))
    report.attempt("without the plug-in", lambda: _timed(request, report, "off"))


def _timed(request: Request, report: Report, plugin: str) -> None:
    name = f"plug-in {plugin}"
    folder = request.path / f"timed-{plugin}"
    folder.mkdir(parents=True, exist_ok=True)
    arguments = ("timed", folder, _REPEATS, _DELAYS, _SEED, _LINGER_S)
    env = {**_NCCL, _PROFILER: plugin}
    with everstep_run(
        request, f"run-{plugin}", "nccl_program.py", arguments, ranks=_RANKS, policy=_ROUNDS, env=env
    ) as one:
        one.wait(request.limit_s / 4)
    own = [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(_RANKS)]
    told = _told(one.folder / "run")
    (request.path / f"told-{plugin}.json").write_text(json.dumps(told))
    for op, size, host_s, device_s in _stopwatches(own):
        row = next((row for row in _rows(told) if (family(row["op"]), row["num_bytes"]) == (family(op), size)), None)
        said: dict[str, Any] = row["mean_s"] if row else {"value": None, "why": "no row"}
        off = None if said["value"] is None else abs(device_s / said["value"] - 1)
        note = f"host {1e3 * host_s:.3f} ms, device {1e3 * device_s:.3f} ms; {said.get('why') or ''}"
        report.figure(
            f"{name}: {op} of {size >> 20} MiB: off the device's stopwatch",
            off,
            "share",
            "<= 0.05" if plugin == "on" else "",
            note,
        )
    _late(report, name, told, own)


def _told(folder: Path) -> dict[str, Any]:
    line = [sys.executable, "-m", "everstep", "collectives", "--json", str(folder)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=30, check=False)
    if done.returncode:
        raise RuntimeError(f"everstep collectives ends with {done.returncode}: {done.stderr[-400:]}")
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def _rows(told: dict[str, Any]) -> list[dict[str, Any]]:
    return [row for group in told["groups"] for row in group["rows"]]


def _stopwatches(own: list[dict[str, Any]]) -> list[tuple[str, int, float, float]]:
    times = defaultdict(list)
    for rank in own:
        for op, num_bytes, host_s, device_s in rank["timed"]:
            times[op, num_bytes].append((host_s, device_s))
    return [
        (*key, fmean(host for host, _ in found), fmean(device for _, device in found))
        for key, found in sorted(times.items())
    ]


def _late(report: Report, name: str, told: dict[str, Any], own: list[dict[str, Any]]) -> None:
    said = {each["seq"]: each["rank"] for each in told["late"]}
    turns = [(seq, whose) for seq, whose, _ in own[0]["delayed"]]
    seen = [(seq, whose) for seq, whose in turns if seq in said]
    right = sum(said[seq] == whose for seq, whose in seen)
    note = f"{len(seen)} of {len(turns)} seen"
    report.figure(
        f"{name}: delayed ranks named", right / len(turns), "share", ">= 0.98" if name.endswith("on") else "", note
    )


def _hang(request: Request, report: Report, kind: str) -> None:
    title = f"NCCL, {_RANKS} ranks, rank 2 {'does not come' if kind == 'missing' else 'calls something else'}"
    folder = request.path / kind
    folder.mkdir(parents=True, exist_ok=True)
    arguments = (kind, folder, 80, 0, _SEED, 0)
    until = time.monotonic() + request.limit_s / 4
    with everstep_run(
        request, f"run-{kind}", "nccl_program.py", arguments, ranks=_RANKS, policy=_PATIENCE, env=_NCCL
    ) as one:
        one.until((folder / "hung").exists, until - time.monotonic(), "the hang")
        at = float((folder / "hung").read_text())
        one.until(lambda: one.actions("IncidentOpened"), until - time.monotonic(), f"{title}: an incident")
        report.figure(f"{title}: noticed after", time.time() - at, "s")
        (verdict, *_) = one.until(lambda: one.actions("Concluded"), until - time.monotonic(), f"{title}: a verdict")
        known = verdict["verdict"]
        report.figure(f"{title}: verdict", known["code"], note=known["sentence"][:300])
        report.figure(f"{title}: names rank 2", known.get("ranks", []) == _GUILTY, goal="is true")
        if (
            known.get("certainty") == "certain"
        ):  # a doubtful one of a plain program is left to the collective's own limit
            one.wait(max(1.0, until - time.monotonic()))
            report.figure(f"{title}: the job ends well after", time.time() - at, "s")


def _killed(request: Request, report: Report) -> None:
    folder = request.path / "killed"
    folder.mkdir(parents=True, exist_ok=True)
    arguments = ("cuda:0", _STEPS, _KILL_AT, folder, "nccl", _PAUSE_S)
    with everstep_run(request, "run-killed", "ranks_program.py", arguments, ranks=_RANKS, env=_NCCL) as one:
        one.wait(request.limit_s / 4)
        closed = one.actions("IncidentClosed")
    ranks = [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(_RANKS)]
    report.figure("NCCL, one of four killed: all resumed", all(each["resumed"] for each in ranks), goal="is true")
    report.figure("NCCL: the same parameters", len({each["digest"] for each in ranks}) == 1, goal="is true")
    report.figure("NCCL: steps lost", closed[0].get("lost_steps") if closed else None, goal="<= 0")
    at = float((folder / "killed").read_text())
    took_s = max(each["stages"]["first step"] for each in ranks) - at
    report.figure("NCCL: kill to next step of all", took_s, "s", "<= 4.0")
    for stage, reached in ranks[0]["stages"].items():
        report.figure(f"NCCL: of it, {stage}", reached - at, "s")
        at = reached


if __name__ == "__main__":
    run(main)
