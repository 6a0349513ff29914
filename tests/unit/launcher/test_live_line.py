"""The live line: only on a quiet terminal, never in a begun line, gone before anything else is written."""

from pathlib import Path

import pytest

from everstep.journal.fold import fold
from everstep.journal.kept import Written
from everstep.journal.reader import read_journal
from everstep.journal.view import GenerationView, RunView
from everstep.launcher.output.live_line import DRAW_EVERY_S, QUIET_S, LiveLine, may_draw
from everstep.model.events import SnapshotPersisted
from everstep.model.facts import RankAccount
from everstep.report.now.live import live_text

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


def stepping(step: int, *, restores_from: str = "") -> RunView:
    """Of two ranks on two nodes, which have done this step; None: none yet."""
    generation = GenerationView(number=1, begun_at=100.0, seq=1, resume_step=40, why="", restores_from=restores_from)
    generation.node_of = {0: "n0", 1: "n1"}
    account = RankAccount(
        rank=0, spawned_at=99.0, last_step=step, last_step_at=101.0, first_step=41 if step > 40 else None
    )
    generation.accounts = {0: account, 1: RankAccount(rank=1, spawned_at=99.0, last_step=step)}
    view = fold(READING.header, READING.entries[:1])
    view.generations = [generation]
    return view


def persisted(node: str) -> SnapshotPersisted:
    return SnapshotPersisted(at=104.0, node=node, generation=1, step=50, written_bytes=8 << 20, took_s=4.0)


def test_a_step_that_is_written_to_disk_has_a_rate_and_a_usual_length():
    view = stepping(50)
    view.kept.written = Written(step=50, begun_at=100.0, nodes=("n0", "n1"), parts={"n0": persisted("n0")})
    view.kept.last_write_s = 8.0
    assert live_text(view, (), 106.0).endswith("writing step 50: 1 of 2 nodes 2.00 MiB/s for 6.00s, usually 8.00s")
    assert "writing" not in live_text(view, (), 101.0), "it has just begun"
    assert "writing" not in live_text(stepping(49), (), 106.0)


def test_a_step_to_come_is_not_written_yet_but_the_last_one_is():
    view = stepping(49)
    view.kept.written = Written(step=50, begun_at=100.0, nodes=("n0",))
    assert "writing" not in live_text(view, (), 106.0)
    view.kept.written.is_last = True
    assert live_text(view, (), 106.0).endswith("writing step 50: 0 of 1 node for 6.00s")


def test_ranks_that_begin_with_a_checkpoint_on_disk():
    view = stepping(40, restores_from="/ck/step-40")
    assert live_text(view, (), 107.0).endswith("restoring step 40 from disk: 0 of 2 ranks stepped, for 7.00s")
    assert "restoring" not in live_text(view, (), 101.0)
    assert "restoring" not in live_text(stepping(40), (), 107.0), "from memory"
