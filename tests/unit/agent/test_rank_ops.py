"""What of a rank's flight record is told, and when."""

import array
import random

from everstep.agent.watching.rank_ops import Entry, Streams

THREAD = 140700112804736


def entry(number: int, thread: int = THREAD, op: str = "gloo:all_reduce") -> Entry:
    """Entered at second `number`."""
    return Entry(
        record_id=number,
        process_group=("0", "default_pg"),
        profiling_name=op,
        collective_seq_id=number + 1,
        time_created_ns=number * 10**9 + 5,
        input_sizes=[[256]],
        input_dtypes=["Float"],
        thread_id=str(thread),
    )


def calls(*numbers: int) -> dict[str, object]:
    """Each took a quarter of a second."""
    words = [word for n in numbers for word in (THREAD, n * 10**9, n * 10**9 + 250_000_000)]
    return {"calls": array.array("q", words).tobytes()}


def told(streams: Streams, numbers: range, answer: dict[str, object]) -> list[tuple[int, int, float, float]]:
    streams.begin({7})
    streams.take(0, 7, [entry(number) for number in numbers], answer, {}, 512)
    (found,) = streams.all()
    assert found.kinds in ((("0", "all_reduce", 1024),), ())
    return list(found.ops)


def test_each_operation_is_told_once_and_with_its_time() -> None:
    streams = Streams()
    assert told(streams, range(3), calls(0, 1, 2)) == [(0, n + 1, n + 5e-9, 0.25) for n in range(3)]
    assert told(streams, range(5), calls(0, 1, 2, 3, 4)) == [(0, n + 1, n + 5e-9, 0.25) for n in (3, 4)]
    assert told(streams, range(5), calls(0, 1, 2, 3, 4)) == []


def test_what_is_under_way_is_told_when_it_is_over() -> None:
    streams = Streams()
    assert [seq for _, seq, _, _ in told(streams, range(4), calls(0, 1, 2))] == [1, 2, 3]
    assert [(seq, took_s) for _, seq, _, took_s in told(streams, range(5), calls(2, 3, 4))] == [(4, 0.25), (5, 0.25)]


def test_what_is_never_timed_is_told_all_the_same() -> None:
    streams = Streams()
    first = told(streams, range(4), {})
    assert [(seq, took_s) for _, seq, _, took_s in first] == [(1, -1.0), (2, -1.0), (3, -1.0)]
    assert [seq for _, seq, _, _ in told(streams, range(4), {})] == [4]


def test_what_a_lying_rank_passes_as_calls_is_no_time() -> None:
    for data in (b"", b"x", b"\xff" * 24, random.Random(3).randbytes(24 * 50), "text", None):
        streams = Streams()
        assert {took_s for _, _, _, took_s in told(streams, range(4), {"calls": data})} == {-1.0}


def test_only_the_newest_are_told_and_all_are_counted() -> None:
    streams = Streams()
    streams.begin({7})
    streams.take(0, 7, [entry(number) for number in range(100)], calls(*range(100)), {}, 10)
    (found,) = streams.all()
    assert (len(found.ops), found.num_entered, found.ops[0][1]) == (10, 100, 91)
