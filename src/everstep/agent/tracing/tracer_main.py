"""The process that traces one rank for its agent: `python -m everstep.agent.tracing.tracer_main ORDER`.

Never in the agent, which must answer while it records. It has little of the CPU beside the ranks, no more than so much
of it altogether, and ends with its agent. Started by `agent.tracing.tracer`.
"""

import math
import os
import resource
import sys
from pathlib import Path

import msgspec

from everstep.agent.memory.foreign_board import line_at
from everstep.agent.tracing import files
from everstep.agent.tracing.flights import NAME, flight_track
from everstep.agent.tracing.kernel_windows import OFF
from everstep.agent.tracing.orders import Flight, Order, Told
from everstep.agent.tracing.tracks import record
from everstep.linux.parent import die_with_parent
from everstep.report.now.trace import UNKNOWN, Track, summary_of

NICENESS = 10
"""A tenth of what a rank on the same CPU gets. With more, stacks of a rank without a CPU would not be taken at all."""

MAX_CPU_S = 10
CPU_SHARE = 0.5
"""So long, or so much of the time of a longer trace, each of the process and of py-spy; the kernel ends it then. A
trace of 3 s needs about one second."""

MAX_MEMORY = 1 << 30
"""A rank may have thousands of threads. A trace of a usual one needs some 60 MB."""

MAX_STACKS = 16 << 20
STACKS_PER_BYTE = 2
"""py-spy's file, for a trace that may be larger than that: cutting it needs all of it."""

MAX_FLIGHT = 8 << 20


def main() -> None:
    order = msgspec.json.decode(sys.argv[1].encode(), type=Order)
    if not die_with_parent(order.agent):
        return
    os.nice(NICENESS)
    cpu_s, max_stacks = max(MAX_CPU_S, math.ceil(CPU_SHARE * order.seconds)), max_stacks_of(order)
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s))
    resource.setrlimit(resource.RLIMIT_FSIZE, (max_stacks, max_stacks))
    resource.setrlimit(resource.RLIMIT_DATA, (MAX_MEMORY, MAX_MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        told = _trace(order)
    except Exception as error:  # whatever it is, the agent learns why there is no trace
        told = Told(why=f"{type(error).__name__}: {error}"[:300])
    _say(told)


def max_stacks_of(order: Order) -> int:
    return max(MAX_STACKS, STACKS_PER_BYTE * order.max_bytes)


def _trace(order: Order) -> Told:
    run_dir = Path(order.run_dir)
    with files.opened(run_dir):
        pass  # for the rank, which writes its flight record there

    def collectives(begin: float, end: float) -> Track:
        _say(Told(wants_flight=True))
        why = msgspec.json.decode(sys.stdin.buffer.readline(), type=Flight).why
        if why:
            return Track(name=NAME, is_measured=False, why=why)
        return flight_track(run_dir / files.FOLDER / order.flight, begin, end, MAX_FLIGHT)

    with line_at(order.agent, order.line, order.pid) as line:
        if line is None:
            return Told(why="its line on the board names another process")
        trace = record(order.run, line, line.pid, order.seconds, collectives, max_stacks=max_stacks_of(order))
    trace = msgspec.structs.replace(trace, rank=order.rank, generation=order.generation)  # whatever the rank says
    data = files.encoded(trace, order.max_bytes)
    files.write_new(run_dir, order.name, data)
    missing = [
        f"{each.track}: {each.why}"
        for each in summary_of(trace).tracks
        if each.state == UNKNOWN and each.why != OFF  # that was asked for
    ]
    return Told(num_bytes=len(data), seconds=trace.end - trace.begin, why="; ".join(missing)[:500])


def _say(told: Told) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(told) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
