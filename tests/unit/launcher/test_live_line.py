"""The live line: only on a quiet terminal, never in a begun line, gone before anything else is written."""

from pathlib import Path

import pytest

from everstep.journal.fold import fold
from everstep.journal.reader import read_journal
from everstep.launcher.output.live_line import DRAW_EVERY_S, QUIET_S, LiveLine, may_draw
from everstep.report.live import live_text

READING = read_journal(Path(__file__).parents[2] / "golden/journal.jsonl")


def test_it_waits_for_a_quiet_terminal_and_a_line_that_has_ended():
    line = LiveLine(lambda: "step 3", lambda: 80)
    assert line.erase(0.0) == b""
    assert line.draw(1.0, is_at_line_begin=True) == b""
    assert line.draw(QUIET_S, is_at_line_begin=False) == b""
    assert line.draw(QUIET_S, is_at_line_begin=True) == b"\r\x1b[Kstep 3"
    assert line.draw(QUIET_S + DRAW_EVERY_S, is_at_line_begin=True) == b"", "it says the same"
    assert line.erase(9.0) == b"\r\x1b[K"
    assert line.erase(9.1) == b"", "once"
    assert line.draw(9.2, is_at_line_begin=True) == b""


def test_it_never_reaches_the_last_column():
    assert LiveLine(lambda: "x" * 200, lambda: 80).draw(9.0, is_at_line_begin=True) == b"\r\x1b[K" + b"x" * 79


def test_not_without_a_terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("os.isatty", lambda _: True)
    assert may_draw(2)
    monkeypatch.setenv("EVERSTEP_LIVE_LINE", "off")
    assert not may_draw(2)
    monkeypatch.delenv("EVERSTEP_LIVE_LINE")
    monkeypatch.setenv("TERM", "dumb")
    assert not may_draw(2)


@pytest.mark.parametrize("seq", range(1, len(READING.entries) + 1))
def test_what_it_says_at_each_moment_is_one_printable_line(seq):
    view = fold(READING.header, READING.entries[:seq])
    text = live_text(view, (), view.last_at + 1.0)
    assert text.isprintable()
    if view.generations and not view.is_over:
        assert text.startswith("step ")
        assert view.open_incident is None or view.open_incident in text
