"""Measures the tracks of a trace: what is looked at while it runs, and what is asked for at its end."""

import math
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from everstep.agent.memory.foreign_board import RankLine
from everstep.agent.watching.rank_ops import Entry
from everstep.analyzer.collective.calls import durations
from everstep.analyzer.collective.volume import num_bytes
from everstep.cli.ask import named, post
from everstep.cli.examine.doctor import await_evidence
from everstep.cli.see.kernel_windows import KernelWindows
from everstep.cli.waiting import Waiting, waiting
from everstep.errors import EverstepError
from everstep.journal.reader import Cursor
from everstep.journal.runs import RunDir
from everstep.linux import proc
from everstep.linux.regular import read_regular
from everstep.probes.rank.recording import Recorded, Recording, RecordingError, StackEvent
from everstep.probes.rank.stack import find_py_spy, why_no_py_spy
from everstep.report.now.trace import Slice, Trace, Track, step_slices

LOOK_S = 0.005
WINDOW_S = 0.25
EVIDENCE_S = 15.0
MAX_RECORD = 64 << 20
MAX_DEPTH = 256


class _Record(msgspec.Struct, frozen=True):
    """As much of a flight record as is needed, with the calls that the rank's watch thread puts beside it."""

    entries: list[Entry] = []
    everstep_calls: list[tuple[int, int, int]] = []


def record(run_dir: RunDir, run: str, line: RankLine, seconds: float) -> Trace:
    """Of the rank that has this line, from now on; shorter if its process ends before."""
    rank, pid, generation = line.rank, line.pid, line.generation
    stacks, why_no_stacks = _start(pid, seconds)
    kernel = KernelWindows(pid)
    try:
        begin = time.time()
        steps, waits = _look(line, pid, begin + seconds, kernel)
        end = time.time()
        seen, why_no_stacks = _stop(stacks, why_no_stacks)
        stacks = None
    finally:
        kernel.close()
        if stacks is not None:
            stacks.kill()
    tracks = [
        _steps_track(steps),
        _collectives_track(run_dir, rank, generation, begin, end),
        Track(name="waits for a CPU", values=waits, unit="ms per s")
        if waits
        else Track(name="waits for a CPU", is_measured=False, why="the kernel has no schedstat"),
        kernel.track(),
        Track(name="stacks", slices=stack_slices(seen), why="py-spy, 50 times a second, to 20 ms")
        if seen is not None
        else Track(name="stacks", is_measured=False, why=why_no_stacks),
    ]
    return Trace(run=run, rank=rank, pid=pid, generation=generation, begin=begin, end=end, tracks=tracks)


def _start(pid: int, seconds: float) -> tuple[Recording | None, str]:
    py_spy = find_py_spy()
    if py_spy is None:
        return None, why_no_py_spy()
    try:
        recording = Recording(py_spy, pid, seconds)
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
    line: RankLine, pid: int, until: float, kernel: KernelWindows
) -> tuple[list[tuple[int, float]], list[tuple[float, float]]]:
    """Steps (number, when) and waits for a CPU (when, milliseconds a second), until then or the process's end."""
    begun = time.time()
    steps = [line.step()]
    waits: list[tuple[float, float]] = []
    waited, window_at = _waited_ns(pid), begun
    with waiting("tracing", round(until - begun), "second") as bar:
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
                _show(bar, now - begun, steps)
                if line.pid != pid or not Path(f"/proc/{pid}").exists():
                    break
            time.sleep(min(LOOK_S, max(0.0, until - now)))
    return [(step, at) for step, at in steps if step >= 0 and math.isfinite(at)], waits


def _show(bar: Waiting, passed_s: float, steps: Sequence[tuple[int, float]]) -> None:
    bar.at(int(passed_s), bar.total, f"step {steps[-1][0]}" if steps[-1][0] >= 0 else "")


def _waited_ns(pid: int) -> int | None:
    found = proc.sched_ns(pid)
    return None if found is None else found[1]


def _steps_track(steps: Sequence[tuple[int, float]]) -> Track:
    slices = step_slices(steps)
    if slices:
        return Track(name="steps", slices=slices)
    why = f"no step ended (the last one was {steps[0][0]})" if steps else "no step so far"
    return Track(name="steps", is_measured=bool(steps), why=why)


def _collectives_track(run_dir: RunDir, rank: int, generation: int, begin: float, end: float) -> Track:
    """From the flight record, which all ranks are asked for."""
    name = "collectives"
    try:
        cursor = Cursor(run_dir.journal)
        cursor.read()  # what was before is not ours
        request = named(post(run_dir, "/api/doctor", {}), "request")
        await_evidence(run_dir, cursor, request, EVIDENCE_S)
        path = run_dir.path / "evidence" / request / f"gen-{generation}" / f"rank-{rank}-flight.json"
        found = msgspec.json.decode(read_regular(path, MAX_RECORD), type=_Record)
    except FileNotFoundError:
        return Track(name=name, is_measured=False, why="the rank gave no flight record")
    except (EverstepError, OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        return Track(name=name, is_measured=False, why=str(error)[:200])
    return collectives_track(found.entries, found.everstep_calls, begin, end)


def collectives_track(
    entries: Sequence[Entry], calls: Iterable[tuple[int, int, int]], begin: float, end: float
) -> Track:
    """Slices for those of which the call's time is known, moments for the others."""
    entered = [(int(e.thread_id) if e.thread_id.isdecimal() else -1, e.time_created_ns) for e in entries]
    found = durations(entered, calls)
    slices, moments = [], []
    for entry, took_s in zip(entries, found, strict=True):
        at = entry.time_created_ns / 1e9
        if not begin <= at <= end:
            continue
        size = num_bytes(entry.op, entry.input_sizes, entry.input_dtypes, entry.output_sizes, entry.output_dtypes)
        args = {"group": entry.process_group[1] or entry.process_group[0], "seq": entry.collective_seq_id}
        args |= {"bytes": size if size >= 0 else "unknown"}
        if took_s >= 0 and not entry.is_queued:
            slices.append(Slice(entry.op, at, at + took_s, args, entry.thread_id))
        else:
            moments.append(Slice(f"{entry.op} (end unknown)", at, at, args, entry.thread_id))
    why = "the record begins later: it holds the newest operations only" if _begins_late(entries, begin) else ""
    if moments:
        why = "; ".join(filter(None, (why, f"of {len(moments)} it is not known when they ended")))
    if not entries:
        return Track(name="collectives", is_measured=False, why="the flight record is empty")
    return Track(name="collectives", slices=_apart(slices), moments=moments, why=why)


def _begins_late(entries: Sequence[Entry], begin: float) -> bool:
    oldest = min(entries, key=lambda entry: entry.record_id, default=None)
    return oldest is not None and oldest.record_id > 0 and oldest.time_created_ns / 1e9 > begin


def _apart(slices: Iterable[Slice]) -> list[Slice]:
    """Of one thread each slice ends before one that it does not contain begins; two clocks were read."""
    by_lane: defaultdict[str, list[Slice]] = defaultdict(list)
    for each in sorted(slices, key=lambda each: (each.begin, -each.end)):
        lane = by_lane[each.lane]
        if lane and lane[-1].begin < each.begin < lane[-1].end < each.end:
            lane[-1] = msgspec.structs.replace(lane[-1], end=each.begin)
        lane.append(each)
    return [each for lane in by_lane.values() for each in lane]


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
