"""What a snapshot of each step adds to a step, and how fast it is copied; torch's stagers in the same process."""

from gpu_running.part import Report, Request, SkipError, run
from gpu_running.under_everstep import run as everstep_run

_BUFFERS = 5
_SPARE_GB = 12


def main(request: Request, report: Report) -> None:
    for size in request.sizes_gb:
        report.attempt(f"{size:g} GB", lambda size=size: _one(request, size))  # type: ignore[misc]


def _one(request: Request, size: float) -> None:
    free = _free_gb()
    if free < size * 1.07 * _BUFFERS + _SPARE_GB * (not request.is_rehearsal):
        raise SkipError(f"{free:.0f} GB of memory are free; {_BUFFERS} snapshots of {size:g} GB need more")
    arguments = (request.device, size, request.out)
    with everstep_run(request, f"{size:g}", "snapshots_program.py", arguments, policy="snapshot_buffers = 4") as one:
        one.wait(request.limit_s)


def _free_gb() -> float:
    with open("/proc/meminfo", encoding="ascii") as file:  # noqa: PTH123 - one line of it
        return next(int(line.split()[1]) * 1024 / 1e9 for line in file if line.startswith("MemAvailable"))


if __name__ == "__main__":
    run(main)
