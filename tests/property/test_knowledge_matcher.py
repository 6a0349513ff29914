"""The matcher on any bytes in any chunks: same findings, bounded memory, linear time, never an exception."""

import itertools
import time

from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from everstep.knowledge.causality.ranking import rank_findings
from everstep.knowledge.engine import Engine
from everstep.knowledge.findings import Finding
from everstep.knowledge.lines import Clock, clean
from everstep.knowledge.loading import load_base
from everstep.knowledge.matcher import MAX_LINE_BYTES, Matcher

NOW = 1_795_000_000.0
BASE = load_base()
ENGINE = Engine(BASE.signatures)
ENGINE.prepare()  # not in the middle of a measurement

PIECES = st.sampled_from(
    [
        b"NVRM: Xid (PCI:0000:91:00): 79, pid='<unknown>', GPU has fallen off the bus.",
        b"[rank3]: Traceback (most recent call last):",
        b"Traceback (most recent call last):",
        b'  File "/home/u/train.py", line 3, in main',
        b"    x = y",
        b"KeyError: 'labels'",
        b"[rank3]: RuntimeError: something new",
        b"During handling of the above exception, another exception occurred:",
        b"Root Cause (first observed failure):",
        b"  rank      : 3 (local_rank: 3)",
        b"  exitcode  : -9 (pid: 3)",
        b"=====================",
        b"Exception ignored in: <x>",
        b"nvidia-nvswitch0: SXid (PCI:0000:c3:00.0): 24007, Fatal, Link 28",
        b"2026-11-21 03:14:05,123 ERROR Killed",
        b"2026-99-99 99:99:99 x",
        b"\x1b[31mCUDA out of memory\x1b[0m",
        b"\x1b]0;title",
        b"\r",
        b"\r\n",
        b"\n",
        b"\n",
        b"\n",
        b"\x00\xff\xfe",
        b"E9999 99:99:99.9 1 ",
    ]
)
TEXTS = st.lists(st.one_of(PIECES, st.binary(max_size=40)), max_size=60).map(b"".join)


def read(text: bytes, cuts: list[int]) -> list[Finding]:
    matcher = Matcher(BASE, now=NOW, engine=ENGINE)
    edges = [0, *sorted(c % (len(text) + 1) for c in cuts), len(text)]
    for start, end in itertools.pairwise(edges):
        matcher.feed("log", text[start:end])
    return matcher.finish()


@given(TEXTS, st.lists(st.integers(0, 5000), max_size=12))
@settings(max_examples=examples(300), deadline=None)
def test_chunks_do_not_matter(text, cuts):
    assert read(text, cuts) == read(text, [])


@given(TEXTS)
@settings(max_examples=examples(200), deadline=None)
def test_findings_are_ranked_and_printable(text):
    for finding in rank_findings(read(text, [])):
        assert finding.text.isprintable()
        assert 1 <= finding.line <= text.count(b"\n") + 1
        assert finding.to_json()["blame"] in {
            "user",
            "machine",
            "network",
            "storage",
            "environment",
            "scheduler",
            "unknown",
        }


@given(st.binary(max_size=300))
@settings(max_examples=examples(500), deadline=None)
def test_a_line_of_anything_is_taken_apart(line):
    part = Clock(NOW).split(line)
    assert line.endswith(part.message)
    assert clean(line).count(b"\n") == line.count(b"\n")


@given(st.lists(st.sampled_from([b"\r", b"\n", b"\r\n", b"a", b"\xff"]), max_size=12).map(b"".join))
@settings(max_examples=examples(300), deadline=None)
def test_returns_before_a_line_end_are_taken_out_and_others_stay(block):
    assert clean(block) == block.replace(b"\r\n", b"\n")


@given(st.binary(min_size=1, max_size=12), st.integers(1, 3))
@settings(max_examples=40, deadline=None)
def test_no_repetition_is_worse_than_linear(unit, lines):
    """Four times the text takes at most twelve times as long, with room for a noisy machine."""

    def cost_s(size: int) -> float:
        line = (unit * (size // len(unit) + 1))[:size].replace(b"\n", b" ") + b"\n"
        began = time.process_time()
        read(line * lines, [])
        return time.process_time() - began

    cost_s(4096)
    assert cost_s(1 << 18) < 12 * cost_s(1 << 16) + 0.2


@given(st.lists(st.binary(min_size=1, max_size=5000).map(lambda b: b.replace(b"\n", b"x")), max_size=40))
@settings(max_examples=50, deadline=None)
def test_memory_stays_bounded_without_line_ends(chunks):
    matcher = Matcher(BASE, now=NOW, engine=ENGINE)
    for chunk in chunks:
        matcher.feed("log", chunk * 20)
        assert len(matcher._streams["log"].tail) <= MAX_LINE_BYTES
