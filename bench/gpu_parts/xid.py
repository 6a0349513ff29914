"""A fault that the driver reports: its Xid by NVML and in the kernel's log, and what everstep makes of it."""

import subprocess
import time

from everstep.model.facts import Alert
from everstep.probes.node.accelerators.nvml import NvmlXids
from everstep.probes.node.kernel.kernel_log import LazyKernelLog
from gpu_running.part import Report, Request, run
from gpu_running.under_everstep import run as everstep_run

_LIMIT_S = 15.0


def main(request: Request, report: Report) -> None:
    xids = NvmlXids(LazyKernelLog().take)
    report.attempt("NVML events", lambda: xids.look(time.time()))
    with everstep_run(request, "wild", "wild_program.py", (request.device,)) as one:
        code = one.running.wait(request.limit_s)
        alerts = one.events("NodeAlerted")
        verdicts = one.actions("Concluded")
    report.figure("the run recovers, and ends with", code, goal="<= 0", note=one.running.last_output(200))
    told = [
        f"{each.get('code', each)}" for event in alerts for each in event.get("alerts", [event.get("alert", event)])
    ]
    report.figure("alerts of the node", ", ".join(told)[:300] or "none")
    named = [str(each.get("verdict", each).get("code")) for each in verdicts]
    report.figure("verdicts", ", ".join(named) or "none")
    report.attempt("events", lambda: _events(xids, report))
    report.attempt("kernel log", lambda: _kernel(report))
    xids.close()


def _events(xids: NvmlXids, report: Report) -> None:
    found: list[Alert] = []
    until = time.monotonic() + _LIMIT_S
    while not found and time.monotonic() < until:
        found += xids.look(time.time())
        time.sleep(0.2)
    said = "; ".join(f"{alert.code} {alert.device}" for alert in found)
    report.figure("NVML tells of the Xid", bool(found), goal="is true", note=said)


def _kernel(report: Report) -> None:
    done = subprocess.run(["dmesg"], capture_output=True, text=True, timeout=10, check=False)
    lines = [line for line in done.stdout.splitlines() if "NVRM: Xid" in line]
    report.figure("Xid lines in the kernel's log", len(lines), note=(lines or [done.stderr.strip()])[-1][:250])
    alerts = LazyKernelLog().take([line.encode() for line in lines], time.time(), "kernel log")
    report.figure("of them recognised", len(alerts), note=", ".join(alert.code for alert in alerts))


if __name__ == "__main__":
    run(main)
