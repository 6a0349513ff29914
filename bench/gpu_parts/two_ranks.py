"""Two gloo ranks that share one device: a kill of one, and the digests that both declare."""

import json

from gpu_running.part import Report, Request, run
from gpu_running.under_everstep import run as everstep_run

_STEPS, _KILL_AT = 24, 11


def main(request: Request, report: Report) -> None:
    folder = request.path / "results"
    folder.mkdir(parents=True, exist_ok=True)
    arguments = (request.device, _STEPS, _KILL_AT, folder, "gloo", 0.0)
    with everstep_run(request, "run", "ranks_program.py", arguments, ranks=2, policy="digest_every = 5") as one:
        one.wait(request.limit_s)
        agreed = one.actions("TrustStep")
        closed = one.actions("IncidentClosed")
    ranks = [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(2)]
    report.figure("both ranks resumed", all(each["resumed"] for each in ranks), goal="is true")
    report.figure("both ended at the same step", {each["step"] for each in ranks} == {_STEPS - 1}, goal="is true")
    report.figure("both have the same parameters", len({each["digest"] for each in ranks}) == 1, goal="is true")
    report.figure("steps lost", closed[0].get("lost_steps") if closed else None, goal="<= 0")
    report.figure("steps that digests of both made trusted", len(agreed), goal=">= 1")


if __name__ == "__main__":
    run(main)
