"""The process that holds the eBPF programs of a node: `python -m everstep.probes.ebpf.observer`.

It never runs in the agent's own process: a fault in libbpf would end the ranks too. It reads one line of JSON (the pids
to watch) and writes one line (what they did since the last line). It ends with its agent, or when its input ends;
everything that is attached ends with it. Started by `agent.watching.kernel_views`.
"""

import os
import sys
import time
from typing import BinaryIO

import msgspec

from everstep.analyzer.slowness.off_cpu import KernelView, ThreadView
from everstep.linux.parent import die_with_parent
from everstep.probes.ebpf import support
from everstep.probes.ebpf.libbpf import BpfError, Library
from everstep.probes.ebpf.memory import Memory
from everstep.probes.ebpf.sched import Sched

NICENESS = 5
MAX_THREADS = 2000
"""Threads per answer; those that waited least are left out."""


class Ask(msgspec.Struct, frozen=True):
    pids: list[int]


class Answer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Either `why_not` or `view` is set."""

    why_not: str = ""
    view: KernelView | None = None


def observe(questions: BinaryIO, answers: BinaryIO) -> None:
    """Answer until `questions` end. An error is the last answer."""
    why = support.why_not()
    try:
        if why:
            raise BpfError(why)
        library = Library()
        sched, memory, missing = Sched(library), *_memory(library)
        looked_at, used_s = time.monotonic(), time.process_time()
        for line in questions:
            pids = msgspec.json.decode(line, type=Ask).pids
            sched.watch(pids)
            if memory is not None:
                memory.watch(pids)
            threads = _threads(sched, memory)
            now, cpu_s = time.monotonic(), time.process_time()
            view = KernelView(
                window_s=now - looked_at, threads=threads[:MAX_THREADS], cost_s=cpu_s - used_s, missing=missing
            )
            looked_at, used_s = now, cpu_s
            _send(answers, Answer(view=view))
    except (BpfError, OSError, msgspec.MsgspecError) as error:
        _send(answers, Answer(why_not=str(error)))


def _memory(library: Library) -> tuple[Memory | None, str]:
    """The memory programs; or None and the reason: a kernel without these tracepoints still has the others."""
    try:
        return Memory(library), ""
    except BpfError as error:
        return None, f"memory: {error}"


def _threads(sched: Sched, memory: Memory | None) -> tuple[ThreadView, ...]:
    """Threads, the one that was held up longest first."""
    waits, sleeps = sched.waits(), sched.sleeps()
    for thread, listed in (memory.look() if memory is not None else {}).items():
        sleeps.setdefault(thread, []).extend(listed)
    found = [
        ThreadView(pid=pid, tid=tid, takers=waits.get((pid, tid), ()), sleeps=tuple(sleeps.get((pid, tid), ())))
        for pid, tid in {*waits, *sleeps}
    ]
    return tuple(sorted(found, key=lambda each: -each.held_s))


def _send(answers: BinaryIO, answer: Answer) -> None:
    answers.write(msgspec.json.encode(answer) + b"\n")
    answers.flush()


def main() -> None:
    """`argv[1]`: the agent's process id."""
    if not die_with_parent(int(sys.argv[1])):
        sys.exit("the agent is gone")
    os.nice(NICENESS)
    observe(sys.stdin.buffer, sys.stdout.buffer)


if __name__ == "__main__":
    main()
