"""Ranks that stand still on a device: how long until it is noticed, who is named, and whether the job goes on."""

import time

from gpu_running.part import Report, Request, SkipError, run
from gpu_running.under_everstep import Run
from gpu_running.under_everstep import run as everstep_run

KINDS = {
    "sleep": "rank 1 sleeps",
    "kernel": "a kernel that does not end",
    "event": "a stream that waits for an event",
    "nccl": "NCCL, one rank missing",
}
_PATIENCE = "hang_report_s = 3.0\nhang_outside_s = 6.0\nhang_computing_s = 8.0"


def main(request: Request, report: Report) -> None:
    for kind, title in KINDS.items():
        report.attempt(title, lambda kind=kind, title=title: _one(request, report, kind, title))  # type: ignore[misc]


def _one(request: Request, report: Report, kind: str, title: str) -> None:
    if request.is_rehearsal and kind != "sleep":
        raise SkipError("the CPU has neither kernels nor streams nor NCCL")
    if not request.is_rehearsal and kind == "sleep":
        raise SkipError("rehearsed on the CPU")
    folder = request.path / kind
    folder.mkdir(parents=True, exist_ok=True)
    limit_s = request.limit_s / (1 if request.is_rehearsal else 3)
    arguments = (kind, request.device, folder)
    with everstep_run(request, kind, "hang_program.py", arguments, ranks=2, policy=_PATIENCE) as one:
        until = time.monotonic() + limit_s
        hung = one.until((folder / "hung").exists, limit_s, "the hang")
        at = float((folder / "hung").read_text()) if hung else 0.0
        _follow(one, report, title, at, until)


def _follow(one: Run, report: Report, title: str, hung_at: float, until: float) -> None:
    def left() -> float:
        return max(0.1, until - time.monotonic())

    one.until(lambda: one.actions("IncidentOpened"), left(), f"{title}: an incident")
    report.figure(f"{title}: noticed after", time.time() - hung_at, "s")
    (verdict, *_) = one.until(lambda: one.actions("Concluded"), left(), f"{title}: a verdict")
    known = verdict["verdict"]
    report.figure(f"{title}: verdict", known["code"], note=known["sentence"][:200])
    report.figure(f"{title}: names rank 1", known.get("ranks", []) == [1], goal="is true")
    one.until(lambda: one.actions("IncidentClosed"), left(), f"{title}: the job goes on")
    report.figure(f"{title}: steps again after", time.time() - hung_at, "s")


if __name__ == "__main__":
    run(main)
