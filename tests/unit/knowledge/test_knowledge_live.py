"""Logs that are read while they are written: pieces cut anywhere, repeats, bounds; and the end of one rank."""

import random

import pytest

from everstep.knowledge import live
from everstep.knowledge.engine import Engine
from everstep.knowledge.live import LiveReader, classify
from everstep.knowledge.loading import load_base

BASE = load_base()
ENGINE = Engine(BASE.signatures)
XID = b"[6781741.548779] NVRM: Xid (PCI:0000:91:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.\n"
TRACE = b"""Traceback (most recent call last):
  File "/job/train.py", line 41, in <module>
    main()
  File "/job/train.py", line 12, in main
    batch["labels"]
KeyError: 'labels'
"""
NCCL = b"a:1:2 [0] NCCL WARN Net : Connection closed by remote peer node-07<45678>\n"


def reader() -> LiveReader:
    return LiveReader(BASE, engine=ENGINE)


def test_a_finding_comes_with_the_last_byte_of_its_line():
    logs = reader()
    assert logs.feed("kernel", XID[:40], now=1.0) == []
    assert logs.feed("kernel", XID[40:-1], now=1.5) == []
    (finding,) = logs.feed("kernel", b"\n", now=2.0)
    assert (finding.code, finding.at, finding.source) == ("ES-G79", 2.0, "kernel")


def test_any_cut_gives_the_same_findings():
    text = NCCL + TRACE + XID + b"step 3 loss 2.1\n"
    whole = [f.code for f in reader().feed("log", text, now=0.0)]
    assert whole == ["ES-NC08", "ES-PY01", "ES-G79"]
    rng = random.Random(5)
    for _ in range(20):
        logs, codes, position = reader(), [], 0
        while position < len(text):
            size = rng.randint(1, 90)
            codes += [f.code for f in logs.feed("log", text[position : position + size], now=0.0)]
            position += size
        assert codes == whole


def test_ranks_do_not_mix():
    logs = reader()
    for begin in range(0, len(TRACE), 17):
        piece = TRACE[begin : begin + 17]
        told = [f for rank in range(3) for f in logs.feed(f"rank-{rank}", piece, now=1.0)]
    assert [f.code for f in told] == ["ES-PY01"]
    (finding,) = logs.findings()
    assert (finding.count, finding.sources, finding.place) == (3, ("rank-0", "rank-1", "rank-2"), "train.py:12")


def test_an_unfinished_last_line_is_read_when_the_log_ends():
    logs = reader()
    assert logs.feed("rank-0", XID[:-1], now=1.0) == []
    assert [f.code for f in logs.close("rank-0", now=1.0)] == ["ES-G79"]
    assert logs.close("rank-0", now=1.0) == []


def test_a_fault_that_goes_on_is_told_again_after_a_while_only():
    logs = reader()
    told = [now for now in range(0, 200, 5) if logs.feed("kernel", XID, now=float(now))]
    assert told == [0, 60, 120, 180]


def test_a_clock_that_jumps_back_loses_nothing():
    logs = reader()
    assert logs.feed("kernel", XID, now=1e9)
    assert logs.feed("kernel", XID, now=1e6)


def test_the_cause_is_looked_for_among_what_is_recent():
    logs = reader()
    logs.feed("rank-1", NCCL, now=10.0)
    logs.feed("rank-0", TRACE, now=10.4)
    choice = logs.cause()
    assert choice.finding is not None
    assert (choice.finding.code, logs.findings()[1].explained_by) == ("ES-PY01", "ES-PY01")
    for now in (80.0, 200.0):
        logs.feed("rank-0", b"step\n", now=now)
    assert logs.findings() == []


def test_one_call_reads_no_more_than_its_bounds_and_counts_the_rest(monkeypatch):
    monkeypatch.setattr(live, "MAX_CHUNK_BYTES", 1000)
    monkeypatch.setattr(live, "MAX_STREAMS", 2)
    monkeypatch.setattr(live, "MAX_LINES", 3)
    logs = reader()
    logs.feed("a", b"x" * 1500 + b"\n", now=0.0)
    assert logs.num_skipped_bytes == 501
    logs.feed("b", b"", now=0.0)
    assert logs.feed("c", XID, now=0.0) == []
    assert logs.num_skipped_bytes == 501 + len(XID)
    logs.close("a", now=0.0)
    several = b"".join(b"RuntimeError: CUDA error: unspecified launch failure number %d\n" % n for n in range(9))
    logs.feed("c", several, now=0.0)
    assert logs.findings()[0].count == 3
    assert logs.num_skipped_bytes > 501 + len(XID)
    logs.feed("c", b"\n" + XID, now=0.0)
    assert [f.code for f in logs.findings()] == ["ES-G79", "ES-CU06"]


def test_memory_stays_bounded_whatever_is_fed():
    logs, rng = reader(), random.Random(11)
    for number in range(60):
        logs.feed(f"s{number}", rng.randbytes(20_000), now=float(number))
        logs.feed(f"s{number}", b"Traceback (most recent call last):\n" + b"  x" * 5000, now=float(number))
        logs.close(f"s{number}", now=float(number))
    assert not logs._streams
    assert logs._matcher is not None
    assert not logs._matcher._streams


@pytest.mark.parametrize(
    ("text", "code", "role"),
    [
        (TRACE.decode(), "ES-PY01", "root"),
        (TRACE.decode()[90:], "ES-PY01", "root"),  # the begin was cut off
        (NCCL.decode() + "Aborted (core dumped)\n", "ES-PY20", "either"),
        (NCCL.decode(), "ES-NC08", "cascade"),
        (
            'Traceback (most recent call last):\n  File "a.py", line 1, in f\nmy.own.StrangeError: no\n',
            "ES-UN07",
            "unknown",
        ),
    ],
)
def test_the_end_of_a_rank(text, code, role):
    finding = classify(text)
    assert finding is not None
    assert (finding.code, finding.role) == (code, role)


@pytest.mark.parametrize("text", ["", "step 1 loss 2\n", "\udc80\ud800\x00"])
def test_nothing_known_is_said_of_harmless_text(text):
    assert classify(text) is None


def test_an_interrupt_is_the_operators():
    found = classify("KeyboardInterrupt\n")
    assert found is not None
    assert (found.blame, found.acts) == ("operator", False)
