"""A trace's events: on one axis, nested, bounded, and each track measured or not."""

import json
import random

from everstep.agent.tracing.flights import collectives_track
from everstep.agent.tracing.tracks import stack_slices
from everstep.agent.watching.rank_ops import Entry
from everstep.probes.rank.recording import RecordingError, parse
from everstep.report.now import trace as traces
from everstep.report.now.trace import Slice, Trace, Track, step_slices, to_object


def made(*tracks: Track, end: float = 110.0) -> dict:
    whole = Trace(run="r", rank=5, pid=7, generation=2, begin=100.0, end=end, tracks=tracks)
    return json.loads(json.dumps(to_object(whole)))


def of(found: dict, ph: str) -> list[dict]:
    return [event for event in found["traceEvents"] if event["ph"] == ph]


def test_times_are_microseconds_since_the_begin_and_cut_to_the_trace() -> None:
    slices = [
        Slice("a", 99, 101),
        Slice("b", 101.5, 102),
        Slice("c", 109, 130),
        Slice("d", 90, 99),
        Slice("e", 111, 112),
    ]
    found = of(made(Track(name="t", slices=slices)), "X")
    assert [(e["name"], e["ts"], e["dur"]) for e in found] == [
        ("a", 0, 1_000_000),
        ("b", 1_500_000, 500_000),
        ("c", 9_000_000, 1_000_000),
    ]


def test_a_missing_track_says_why() -> None:
    found = made(Track(name="stacks", is_measured=False, why="no py-spy"), Track(name="steps", why="one only"))
    assert found["otherData"]["tracks"] == [
        {"track": "stacks", "is": "unknown", "why": "no py-spy", "events": 0},
        {"track": "steps", "is": "measured", "why": "one only", "events": 0},
    ]
    assert [e["name"] for e in of(found, "i")] == ["unknown: no py-spy"]


def test_a_trace_is_bounded(monkeypatch) -> None:
    monkeypatch.setattr(traces, "MAX_EVENTS", 50)
    found = made(Track(name="t", slices=[Slice("x", 100 + n / 100, 100 + n / 100) for n in range(1, 200)]))
    assert len(found["traceEvents"]) == 50
    assert found["otherData"]["left_out"] == 199 + 3 - 50
    lanes = made(Track(name="t", slices=[Slice("x", 101, 102, {}, f"{n:03}") for n in range(40)]))
    assert len({e["tid"] for e in of(lanes, "X")}) == 16


def test_steps_last_from_one_end_to_the_next() -> None:
    assert step_slices([(4, 1.0), (5, 2.0), (8, 5.0), (8, 5.0)]) == [
        Slice("step 5", 1.0, 2.0, {"steps": 1}),
        Slice("steps 6 to 8", 2.0, 5.0, {"steps": 3}),
    ]
    assert step_slices([(4, 1.0)]) == step_slices([]) == []
    assert step_slices([(4, 5.0), (2, 1.0)]) == []  # counted anew


def event(ph: str, name: str, ts: int, tid: int = 1) -> dict:
    return {"name": name, "ph": ph, "ts": ts, "tid": tid, "args": {"filename": "/a/b.py", "line": 3}, "pid": 9}


def test_stacks_lie_between_the_start_of_py_spy_and_its_file() -> None:
    data = [event("B", "f", 50_000), event("B", "g", 60_000), event("E", "g", 70_000), event("B", "h", 80_000)]
    recorded = parse(json.dumps(data).encode(), 200.0, 200.084, samples=3)
    assert (round(recorded.zero_at, 6), round(recorded.off_s, 6), round(recorded.rate)) == (200.002, 0.002, 100)
    assert [(s.name, round(s.begin, 6), round(s.end, 6)) for s in stack_slices(recorded)] == [
        ("g (b.py:3)", 200.062, 200.072),
        ("h (b.py:3)", 200.082, 200.082),  # neither ended: until the newest sample
        ("f (b.py:3)", 200.052, 200.082),
    ]
    early = parse(json.dumps(data).encode(), 200.0, 200.07)  # a tick before the start
    assert (early.zero_at, early.off_s) == (200.0, 0.0)


def test_whatever_py_spy_writes_becomes_nested_slices_or_an_error() -> None:
    draw = random.Random(5)
    for _ in range(300):
        data = [event(draw.choice("BEBx"), draw.choice("fgh"), draw.randrange(-5, 10**6), draw.randrange(3))
                for _ in range(draw.randrange(60))]  # fmt: skip
        text = bytearray(json.dumps(sorted(data, key=lambda e: e["ts"])).encode())
        if draw.random() < 0.3 and text:
            text[draw.randrange(len(text))] = draw.randrange(256)
        try:
            recorded = parse(bytes(text), 100.0, 100.0 + draw.random())
        except RecordingError:
            continue
        found = of(made(Track(name="stacks", slices=stack_slices(recorded))), "X")
        for tid in {e["tid"] for e in found}:
            ends: list[int] = []
            for each in (e for e in found if e["tid"] == tid):
                while ends and ends[-1] <= each["ts"]:
                    ends.pop()
                assert not ends or each["ts"] + each["dur"] <= ends[-1]
                ends.append(each["ts"] + each["dur"])


def entry(number: int, at: float, thread: str = "11", op: str = "gloo:all_reduce") -> Entry:
    return Entry(
        record_id=number,
        process_group=("0", "default_pg"),
        profiling_name=op,
        collective_seq_id=number,
        time_created_ns=int(at * 1e9),
        input_sizes=[[4]],
        input_dtypes=["Float"],
        thread_id=thread,
    )


def test_collectives_are_slices_where_their_calls_are_known() -> None:
    entries = [entry(0, 99.0), entry(1, 101.0), entry(2, 102.0), entry(3, 103.0, op="nccl:all_gather")]
    calls = [(11, int(100.99e9), int(101.5e9))]
    track = collectives_track(entries, calls, 100.0, 110.0)
    (known,) = track.slices
    assert (known.name, known.begin, round(known.end, 3)) == ("all_reduce", 101.0, 101.51)
    assert known.args == {"group": "default_pg", "seq": 1, "bytes": 16}
    assert [each.begin for each in track.moments] == [102.0, 103.0]
    assert "of 2" in track.why
    assert not collectives_track([], [], 100.0, 110.0).is_measured


def test_a_record_that_begins_later_says_so() -> None:
    assert "newest" in collectives_track([entry(700, 105.0)], [], 100.0, 110.0).why
    assert "newest" not in collectives_track([entry(700, 95.0)], [], 100.0, 110.0).why
