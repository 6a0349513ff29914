"""What the machine is, and which processes may be forked there: an interpreter with CUDA in it never is."""

import os
import platform
import subprocess
import sys

from gpu_running.part import Report, Request, run

_FORKS = """
import os, sys
from everstep.worker.parking import fitness
import torch
safe, own = fitness.threads(), {int(name) for name in os.listdir("/proc/self/fd")}
def say(what): print(what + "=" + (fitness.why_unfit(safe, own) or "fit"), flush=True)
say("import torch")
torch.cuda.is_available(); say("is_available()")
torch.cuda.device_count(); say("device_count()")
torch.zeros(1, device=sys.argv[1]); say("a tensor on the device")
"""


def main(request: Request, report: Report) -> None:
    import torch

    report.figure("torch", torch.__version__, note=f"CUDA {torch.version.cuda}, Python {platform.python_version()}")
    report.figure("CPUs", len(os.sched_getaffinity(0)))
    report.figure("memory", os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, "GB")
    if not request.is_rehearsal:
        report.attempt("device", lambda: _device(request, report))
    report.attempt("forks", lambda: _forks(request, report))
    report.attempt("context", lambda: _context(request, report))


def _device(request: Request, report: Report) -> None:
    import torch

    about = torch.cuda.get_device_properties(request.device)
    report.figure("device", about.name, note=f"{about.multi_processor_count} multiprocessors")
    report.figure("device memory", about.total_memory / 1e9, "GB")
    nccl = ".".join(map(str, torch.cuda.nccl.version())) if torch.distributed.is_nccl_available() else None
    report.figure("NCCL", nccl)


def _forks(request: Request, report: Report) -> None:
    """At which call an interpreter becomes one that must not be forked."""
    done = subprocess.run([sys.executable, "-c", _FORKS, request.device], capture_output=True, text=True, check=True)
    said = dict(line.split("=", 1) for line in done.stdout.splitlines())
    for what, why in said.items():
        report.figure(f"after {what}", why)
    if not request.is_rehearsal:
        is_kept = any(name in said["a tensor on the device"] for name in ("/dev/nvidia", "threads", "/dev/dxg"))
        report.figure("an interpreter with CUDA in it is not forked", is_kept, goal="is true")
    report.figure("an interpreter with torch imported is", said["import torch"] == "fit", goal="is true")


def _context(request: Request, report: Report) -> None:
    """What a rank pays before its first kernel."""
    code = (
        "import sys, time, torch; began = time.perf_counter(); x = torch.ones(8, 8, device=sys.argv[1]); "
        "(x @ x).sum().item(); print(time.perf_counter() - began)"
    )
    took = [
        float(subprocess.check_output([sys.executable, "-c", code, request.device]))
        for _ in range(1 if request.is_rehearsal else 2)
    ]
    report.figure("context, allocator and first product of a process", min(took), "s")


if __name__ == "__main__":
    run(main)
