"""Measures the tracks of a trace: what is looked at while it runs, and what is asked for at its end."""

import math
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

from everstep.agent.memory.foreign_board import RankLine
from everstep.agent.tracing.kernel_windows import KernelWindows
from everstep.linux import proc
from everstep.probes.rank.recording import MAX_BYTES, RATE, Recorded, Recording, RecordingError, StackEvent
from everstep.probes.rank.stack import find_py_spy, why_no_py_spy
from everstep.report.now.trace import Slice, Trace, Track, step_slices

LOOK_S = 0.005
WINDOW_S = 0.25
MAX_DEPTH = 256


Show = Callable[[float, int], None]
"""Takes the seconds that have passed and the newest step; below 0: none yet."""


def _show_nothing(passed_s: float, step: int) -> None:
    pass


def record(
    run: str,
    line: RankLine,
    pid: int,
    seconds: float,
    collectives: Callable[[float, float], Track],
    show: Show = _show_nothing,
    max_stacks: int = MAX_BYTES,
) -> Trace:
    """Record the rank that has this line and process, from now on; shorter if it ends before. `collectives`: asked at
    the end, for what was between two times."""
    rank, generation = line.rank, line.generation
    stacks, why_no_stacks = _start(pid, seconds, max_stacks)
    kernel = KernelWindows(pid)
    try:
        begin = time.time()
        steps, waits = _look(line, pid, begin + seconds, kernel, show)
        end = time.time()
        seen, why_no_stacks = _stop(stacks, why_no_stacks)
        stacks = None
    finally:
        kernel.close()
        if stacks is not None:
            stacks.kill()
    tracks = [
        _steps_track(steps),
        collectives(begin, end),
        Track(name="waits for a CPU", values=waits, unit="ms per s")
        if waits
        else Track(name="waits for a CPU", is_measured=False, why="the kernel has no schedstat"),
        kernel.track(),
        Track(name="stacks", is_measured=False, why=why_no_stacks) if seen is None else _stacks_track(seen),
    ]
    return Trace(run=run, rank=rank, pid=pid, generation=generation, begin=begin, end=end, tracks=tracks)


def _start(pid: int, seconds: float, max_bytes: int) -> tuple[Recording | None, str]:
    py_spy = find_py_spy()
    if py_spy is None:
        return None, why_no_py_spy()
    try:
        recording = Recording(py_spy, pid, seconds, max_bytes)
        recording.await_begin()
    except RecordingError as error:
        return None, str(error)
    return recording, ""


def _stop(recording: Recording | None, why: str) -> tuple[Recorded | None, str]:
    if recording is None:
        return None, why
    try:
        return recording.end(), ""
    except RecordingError as error:
        return None, str(error)


def _look(
    line: RankLine, pid: int, until: float, kernel: KernelWindows, show: Show
) -> tuple[list[tuple[int, float]], list[tuple[float, float]]]:
    """Steps (number, when) and waits for a CPU (when, milliseconds a second), until then or the process's end."""
    begun = time.time()
    steps = [line.step()]
    waits: list[tuple[float, float]] = []
    waited, window_at = _waited_ns(pid), begun
    while (now := time.time()) < until:
        step, at = line.step()
        if step != steps[-1][0]:
            steps.append((step, at))
        if now - window_at >= WINDOW_S:
            before, waited = waited, _waited_ns(pid)
            if before is not None and waited is not None:
                waits.append((now, (waited - before) / 1e6 / (now - window_at)))
            window_at = now
            kernel.look(now)
            show(now - begun, steps[-1][0])
            if line.pid != pid or not Path(f"/proc/{pid}").exists():
                break
        time.sleep(min(LOOK_S, max(0.0, until - now)))
    return [(step, at) for step, at in steps if step >= 0 and math.isfinite(at)], waits


def _waited_ns(pid: int) -> int | None:
    found = proc.sched_ns(pid)
    return None if found is None else found[1]


def _steps_track(steps: Sequence[tuple[int, float]]) -> Track:
    slices = step_slices(steps)
    if slices:
        return Track(name="steps", slices=slices)
    why = f"no step ended (the last one was {steps[0][0]})" if steps else "no step so far"
    return Track(name="steps", is_measured=bool(steps), why=why)


def _stacks_track(seen: Recorded) -> Track:
    rate = min(RATE, seen.rate) or RATE
    off_ms = math.ceil(1000 * (1 / rate + seen.off_s))
    return Track(name="stacks", slices=stack_slices(seen), why=f"py-spy, {rate:.0f} times a second, to {off_ms} ms")


def stack_slices(recorded: Recorded) -> list[Slice]:
    """Frames from begin to end; one that does not end, ends with the newest sample."""
    found: list[Slice] = []
    open_: defaultdict[int, list[StackEvent]] = defaultdict(list)
    names: dict[int, str] = {}
    newest = 0

    def close(event: StackEvent, ts: int) -> None:
        begin, end = (recorded.zero_at + at / 1e6 for at in (event.ts, ts))
        file, number = event.args.get("filename", ""), event.args.get("line", 0)
        name = f"{event.name} ({Path(str(file)).name}:{number})" if file else event.name
        found.append(Slice(name, begin, max(begin, end), dict(event.args), names.get(event.tid, str(event.tid))))

    for event in recorded.events:
        newest = max(newest, event.ts)
        stack = open_[event.tid]
        if event.ph == "B" and len(stack) < MAX_DEPTH:
            if not stack:
                names.setdefault(event.tid, event.name if event.name.startswith("thread") else str(event.tid))
            stack.append(event)
        elif event.ph == "E" and stack:
            close(stack.pop(), event.ts)
    for stack in open_.values():
        while stack:
            close(stack.pop(), newest)
    return found
