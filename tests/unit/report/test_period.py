"""The report of a period: the same seconds as goodput, nothing twice, and the program's faults are no machine's."""

import re
import time
from pathlib import Path
from xml.dom import minidom

import msgspec
import pytest

from everstep.cli.share import report
from everstep.errors import ConfigError
from everstep.goodput.buckets import Bucket
from everstep.goodput.figures import goodput_of
from everstep.goodput.slices import slices_of
from everstep.journal.fold import Fold
from everstep.journal.history import history_of
from everstep.journal.load import load_run
from everstep.journal.view import NodeView
from everstep.model.events import NodeLost
from everstep.model.record import Header
from everstep.report.handing.markdown import plain
from everstep.report.parts.asked import Asked
from everstep.report.period.gather import edges_of, machine_of, part_of, period_of
from everstep.report.period.render import render_html, render_markdown, render_text
from everstep.report.picture.costs import GROUPS

JOURNAL = Path(__file__).parents[2] / "golden/journal.jsonl"
VIEW = load_run(JOURNAL)
ASKED = Asked(at=VIEW.last_at, controller_pid=None)


def whole(number=14):
    edges = edges_of(VIEW.started_at, VIEW.finished_at, number)
    part = part_of("golden", VIEW, ASKED, edges)
    return period_of("here", [part], edges), edges


@pytest.mark.parametrize("number", [1, 3, 14])
def test_slices_add_up_to_goodput(number):
    _, edges = whole(number)
    history = history_of(VIEW)
    found, expected = slices_of(history, edges), goodput_of(history).seconds
    for bucket in Bucket:
        assert sum(each[bucket] for each in found) == pytest.approx(expected[bucket], abs=1e-6)


def test_the_whole_period_is_the_run():
    period, _ = whole()
    goodput = goodput_of(history_of(VIEW))
    assert period.ettr == pytest.approx(goodput.ettr)
    assert period.rank_s == pytest.approx(goodput.wall_s * goodput.num_ranks)
    assert sum(each.num_incidents for each in period.slices) == len(period.incidents)
    assert {i.id for i in period.incidents} == {i.id for i in VIEW.incidents.values() if i.drill is None}


def test_nobody_blames_a_machine_for_a_fault_of_the_program():
    period, _ = whole()
    assert {i.machine for i in period.incidents if i.code == "ES-U01"} == {""}
    assert period.offenders == ()


def test_what_lies_outside_is_not_counted():
    middle = (VIEW.started_at + VIEW.finished_at) / 2
    edges = edges_of(middle, VIEW.finished_at)
    half = period_of("here", [part_of("golden", VIEW, ASKED, edges)], edges)
    assert half.rank_s == pytest.approx((VIEW.finished_at - middle) * 4, rel=1e-6)
    assert part_of("golden", VIEW, ASKED, edges_of(0.0, 1.0)) is None


@pytest.mark.parametrize("render", [render_text, render_markdown, render_html])
def test_every_form_says_the_same_and_an_empty_one_says_so(render):
    period, edges = whole()
    text = render(period)
    assert "89.5%" in text
    assert "ES-P06" in text
    assert "No incident in this period." in render(period_of("here", [], edges))


def test_html_is_one_file_with_plots_and_without_scripts():
    hostile = msgspec.structs.replace(whole()[0], where="<script>alert(1)</script>\x1b[2J")
    text = render_html(hostile)
    assert "<script" not in text
    assert "\x1b" not in text
    assert re.findall(r"(?:src|href)=", text) == []
    for svg in re.findall(r"<svg .*?</svg>", text, re.S):
        minidom.parseString(svg)


def test_a_directory_with_a_damaged_journal(tmp_path):
    for name in ("one", "two", "bad"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "journal.jsonl").write_bytes(JOURNAL.read_bytes() if name != "bad" else b"{}\n")
    (tmp_path / "latest").symlink_to("one")
    period = report.gather(str(tmp_path), None, time.time() - VIEW.started_at + 60.0, time.time())
    assert [part.name for part in period.runs] == ["one", "two"]
    assert [unread.name for unread in period.unread] == ["bad"]


@pytest.mark.parametrize("text", ["", "7", "d", "-1d", "0h", "7 d", "1y"])
def test_a_length_that_is_none(text):
    with pytest.raises(ConfigError):
        report.length_s(text)
    assert report.length_s("1.5h") == 5400.0


def test_a_start_is_no_recovery():
    """What no incident is to blame for is not said to be one's."""
    period, _ = whole()
    start_s = period.runs[0].start_rank_s
    costs = goodput_of(history_of(VIEW)).incidents
    of_incidents = sum(cost.get(bucket, 0.0) for cost in costs.values() for bucket in GROUPS["recovery"])
    assert 0.0 < start_s < period.seconds["recovery"]
    assert start_s + of_incidents == pytest.approx(period.seconds["recovery"])
    advice = {each.because: each.rank_s for each in period.advice}
    assert advice["ranks were starting and had done no step yet"] == pytest.approx(start_s)
    assert advice["ranks waited from faults to the next step"] == pytest.approx(of_incidents)


def test_the_trend_is_in_every_form():
    period, _ = whole(3)
    for text in (render_text(period), render_markdown(period), render_html(period)):
        trend = text[text.index("Trend") : text.index("What would help most")]
        assert all(f"{100 * each.ettr:.1f}%" in trend for each in period.slices)
    middle = (VIEW.started_at + VIEW.finished_at) / 2
    edges = edges_of(middle - 10 * 86400.0, VIEW.finished_at)
    mostly_empty = period_of("here", [part_of("golden", VIEW, ASKED, edges)], edges)
    assert sum(each.ettr is not None for each in mostly_empty.slices) < len(mostly_empty.slices)


def nodes(*known):
    """(name, host, joined, lost or None)"""
    view = Fold(Header(run="r1", everstep_version="0", policy={})).view
    for name, host, joined_at, lost_at in known:
        lost = None if lost_at is None else NodeLost(at=lost_at, node=name, reason="ended")
        view.nodes[name] = NodeView(node=name, host=host, pid=1, joined_at=joined_at, lost=lost)
    return view


def test_a_machine_that_gave_one_node_after_the_other_is_one_machine():
    view = nodes(("n0", "a", 0.0, None), ("n1", "b", 0.0, 10.0), ("n2", "b", 12.0, 20.0), ("n3", "b", 21.0, None))
    assert [machine_of(view, name) for name in ("n0", "n1", "n2", "n3", "n9")] == ["a", "b", "b", "b", "n9"]


def test_of_nodes_that_are_on_one_machine_at_once_each_is_told_apart():
    view = nodes(("n0", "a", 0.0, None), ("n1", "a", 0.0, 10.0), ("n2", "a", 12.0, None), ("n3", "", 0.0, None))
    assert [machine_of(view, name) for name in ("n0", "n1", "n2", "n3")] == ["a/n0", "a/n1", "a/n2", "n3"]


@pytest.mark.parametrize("said", ["see www.evil.example", "WWW.evil.example", "@everyone", "a@b.example", "http://x"])
def test_a_ranks_words_make_no_link_and_call_nobody(said):
    shown = plain(said)
    assert shown != said
    assert shown.replace("\u200b", "") == said
