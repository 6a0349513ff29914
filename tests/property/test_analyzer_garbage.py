"""Any bytes, any data: the readers give data or say UnreadableError, in bounded time, and never anything else."""

import json
import pickle

from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from everstep.analyzer.reading.flight import normalise
from everstep.analyzer.reading.log_lines import read_point, read_rank, read_step, read_timeout
from everstep.analyzer.reading.pickled import UnreadableError, loads
from everstep.evidence.decode import decode
from everstep.evidence.sniff import HEAD_BYTES, Kind, kind_of

ENTRY = {
    "record_id": 0, "pg_id": 0, "process_group": ("0", "default_pg"), "collective_seq_id": 1,
    "p2p_seq_id": 0, "op_id": 1,
    "profiling_name": "gloo:all_reduce", "time_created_ns": 1795266560946186722, "input_sizes": [[4]],
    "input_dtypes": ["Float"], "output_sizes": [[4]], "output_dtypes": ["Float"], "state": "scheduled", "retired": True,
    "time_discovered_started_ns": None, "time_discovered_completed_ns": None, "timeout_ms": 1800000, "is_p2p": False,
    "frames": [{"name": "main", "filename": "/u/train.py", "line": 3}],
}  # fmt: skip
RECORD = {
    "version": "2.10",
    "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}},
    "entries": [ENTRY],
}
STACK = [{
    "pid": 7, "thread_id": 1, "thread_name": "MainThread", "os_thread_id": 7, "active": False, "owns_gil": False,
    "frames": [{"name": "main", "filename": "/u/train.py", "short_filename": "train.py", "line": 3}],
    "process_info": None,
}]  # fmt: skip
TEXT = b'Process 7: python train.py\nPython v3.11.7\n\nThread 7 (idle): "MainThread"\n    main (train.py:3)\n'
FILES = [pickle.dumps(RECORD, 2), json.dumps(RECORD).encode(), json.dumps(STACK).encode(), TEXT]

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from([*ENTRY, *RECORD, "x"]), inner, max_size=5)
    ),
    max_leaves=20,
)


def refused_or(reader):
    """What the reader gives, or None when it refuses in words. Anything else that it raises fails the test."""
    try:
        return reader()
    except UnreadableError as error:
        said = str(error)
    assert said
    return None


def read(data: bytes, path: str = "x") -> None:
    kind = kind_of(data[:HEAD_BYTES], path)
    if kind in (Kind.EMPTY, Kind.LOG, Kind.BINARY, Kind.COMPRESSED):
        return
    for part in refused_or(lambda: decode(data, kind)) or ():
        if part.raw_record is not None:
            refused_or(lambda part=part: normalise(part.raw_record, 0))


@given(st.sampled_from(FILES), st.data())
@settings(max_examples=examples(200), deadline=None)
def test_a_damaged_file_is_refused_in_words(file, data):
    damaged = bytearray(file[: data.draw(st.integers(0, len(file)))])
    for _ in range(data.draw(st.integers(0, 4))):
        if damaged:
            damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    read(bytes(damaged), data.draw(st.sampled_from(["x", "nccl_trace_rank_3", "stack.json"])))


@given(st.binary(max_size=400))
@settings(max_examples=examples(200), deadline=None)
def test_random_bytes_as_a_pickle(data):
    for payload in (data, b"\x80\x02" + data, b"\x80\x04" + data + b"."):
        refused_or(lambda payload=payload: loads(payload))


@given(
    st.dictionaries(st.sampled_from(list(ENTRY)), VALUES, max_size=8),
    st.dictionaries(st.sampled_from(list(RECORD)), VALUES),
)
@settings(max_examples=examples(200), deadline=None)
def test_any_data_as_a_flight_record(entry_change, record_change):
    raw = RECORD | {"entries": [ENTRY | entry_change, ENTRY]} | record_change
    record = refused_or(lambda: normalise(raw, 0))
    assert record is None or record.rank == 0


@given(VALUES)
@settings(max_examples=examples(200), deadline=None)
def test_any_json_as_evidence(value):
    envelope = {
        "everstep_evidence": 1,
        "rank": 0,
        "stacks": value,
        "states": value,
        "load": value,
        "unavailable": value,
    }
    for document in (
        value,
        [value],
        envelope,
        {"everstep_evidence": value},
        [STACK[0] | {"frames": [value], "pid": 3}],
    ):
        data = json.dumps(document).encode()
        refused_or(lambda data=data: decode(data, Kind.JSON))


@given(st.text(max_size=300) | st.text(alphabet="loss grad_norm: step=123.e|/nan[]rank", max_size=300))
@settings(max_examples=examples(200), deadline=None)
def test_any_line_of_a_log(line):
    point, step, rank, timeout = read_point(line), read_step(line), read_rank(line), read_timeout(line)
    assert point is None or point.loss is not None or point.grad_norm is not None, "a point says something"
    assert all(number is None or number >= 0 for number in (step, rank, point.step if point is not None else None))
    assert timeout is None or timeout.seq is None or timeout.seq >= 0
