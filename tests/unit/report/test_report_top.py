"""`everstep top` as lines: they fit, they say what the page says, and nothing in them steers the terminal."""

import re

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_picture import JOURNAL

from everstep.journal.fold import fold
from everstep.journal.reader import read_journal
from everstep.report.parts.ansi import Style, safe
from everstep.report.parts.asked import Asked
from everstep.report.picture.overview import Overview
from everstep.report.top.page import Look, cut, render_top

READING = read_journal(JOURNAL)
ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


def rows_at(seq):
    view = fold(READING.header, READING.entries[:seq])
    return Overview().rows(view, Asked(at=view.last_at + 0.25, controller_pid=7))


@pytest.mark.parametrize("seq", [1, 4, 8, 21, 24, 28, 56, 72, 75])
@pytest.mark.parametrize("size", [(80, 24), (40, 6), (200, 50), (10, 1)])
@pytest.mark.parametrize("view", ["overview", "incidents", "nodes"])
def test_it_fits_at_each_moment(seq, size, view):
    width, height = size
    lines = render_top(rows_at(seq), Look(view=view, width=width, height=height), Style(colour=True), "stale")
    assert len(lines) == max(2, height)
    assert all(len(ESCAPE.sub("", line)) <= max(40, width) for line in lines)


def test_the_first_two_lines_answer():
    title, now = render_top(rows_at(75), Look())[:2]
    assert "GAVE UP" in title
    assert "step 155" in title
    assert now.startswith(" gave up: the same failure 2 times at train.py:212")


def test_incidents_are_found_by_words_and_by_scrolling():
    rows = rows_at(75)
    shown = "\n".join(render_top(rows, Look(view="incidents", find="keyerror")))
    assert "i4" in shown
    assert "i2" not in shown
    assert " i4 " not in "\n".join(render_top(rows, Look(view="incidents", first=1)))
    assert " i1 " in "\n".join(render_top(rows, Look(view="incidents", first=99)))


@settings(max_examples=100, deadline=None)
@given(st.text(alphabet=st.characters(codec=None), max_size=60))
def test_what_a_rank_wrote_steers_nothing(text):
    rows = rows_at(56)
    told = msgspec.json.decode(msgspec.json.encode(rows))
    for key in ("now", "program", "what", "doing"):
        told["head"][key] = text
    for key, row in told.items():
        if key.startswith("incident:"):
            row["sentence"] = row["code"] = row["who"] = text
        if key.startswith("fleet:"):
            row["rack"] = text
    for view in ("overview", "incidents", "nodes"):
        lines = render_top(told, Look(view=view))
        assert all(line.isprintable() for line in lines)
        assert all(safe(line) == line for line in lines)
    assert len(cut(text, 10)) <= 10 or max(text) >= "\u0300"


def test_wide_letters_take_two_columns():
    assert cut("状態状態", 5) == "状態…"
    assert cut("状態", 4) == "状態"
    assert cut("e\u0301" * 3, 3) == "e\u0301" * 3


@pytest.mark.parametrize("width", [40, 80, 200])
def test_the_loss_has_a_line_and_a_nan_is_seen_in_it(width):
    rows = rows_at(75)
    begin, end = rows["head"]["started_at"], rows["head"]["finished_at"]
    points = [[begin + (end - begin) * k / 20, 4.0 - 0.1 * k, k, int(k > 15), 0] for k in range(20)]
    points.insert(10, [points[9][0] + 0.01, None, 10, 0, 0])
    lines = render_top({**rows, "loss:0": {"rank": 0, "points": points}}, Look(width=width, height=40))
    line = next(line for line in lines if line.startswith(" loss "))
    assert "✗" in line
    assert "█" in line
    assert len(line) <= width
    assert " 2.5 to 4, last 2.5" in lines[lines.index(line) + 1]
    assert not any(line.startswith(" loss ") for line in render_top(rows, Look(width=width)))
