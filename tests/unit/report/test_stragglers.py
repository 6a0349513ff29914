"""The straggler map: what is kept of the rounds, in which order, and what is said of it."""

import msgspec
import pytest

from everstep.analyzer.observations.records import ParallelGroup, RankTiming
from everstep.controller.detectors.slow import paces as keeping
from everstep.controller.detectors.slow.paces import PaceHistory, in_mesh_order
from everstep.errors import JournalError
from everstep.journal.beside import paces
from everstep.report.picture.stragglers import stragglers_page
from everstep.report.top.page import Look, render_top

NODES = {0: "n0", 1: "n0", 2: "n1", 3: "n1"}


def history(rounds, groups=()):
    kept = PaceHistory()
    kept.begin(3)
    for k, seconds in enumerate(rounds):
        timings = [RankTiming(rank=r, compute_s=s, wait_s=0.5) for r, s in seconds.items()]
        kept.note(1.8e9 + 10 * k, timings, NODES, groups)
    return kept


def group(kind, *ranks):
    return ParallelGroup(name=f"{kind}{ranks[0]}", ranks=ranks, kind=kind, complete=True)


def test_a_rank_that_is_slow_now_is_named_and_its_past_is_seen():
    usual, slow = dict.fromkeys(range(4), 1.0), {0: 1.0, 1: 1.0, 2: 1.6, 3: 1.0}
    page = stragglers_page(history([usual] * 3 + [slow] * 5).newest())
    assert page.sentence == "rank 2 on n1 needs 60% more per step than the median of 1.00s"
    line = next(line for line in page.lines if line.rank == 2)
    assert line.ratios == (1.0, 1.0, 1.0, 1.6, 1.6, 1.6, 1.6, 1.6)
    assert (line.node, line.ratio, line.compute_s, line.wait_s, line.data_s) == ("n1", 1.6, 1.6, 0.5, None)
    assert (page.generation, page.num_ranks, page.end - page.begin) == (3, 4, 70.0)


def test_one_slow_round_is_no_word_and_what_was_not_measured_is_not_zero():
    usual = dict.fromkeys(range(4), 1.0)
    rounds = [usual] * 4 + [{**usual, 3: 9.0}, {0: 1.0, 1: 1.0, 2: 1.0}]
    page = stragglers_page(history(rounds).newest())
    assert page.sentence.startswith("no rank stands out")
    assert page.sentence.endswith("; 1 rank of 4 not measured")
    line = next(line for line in page.lines if line.rank == 3)
    assert (line.ratios[-2:], line.compute_s, line.wait_s) == ((9.0, None), None, None)


def test_a_table_is_told_once_and_another_generation_begins_anew():
    kept = history([{0: 1.0, 1: 2.0}])
    assert kept.newest() is not None
    assert kept.newest() is None
    kept.begin(4)
    assert kept.newest() is None
    kept.note(1.9e9, [RankTiming(rank=0, compute_s=1.0)], NODES, ())
    assert [each.compute_s for each in kept.newest().rounds] == [(1.0, None, None, None)], "the others are unknown"


def test_of_a_large_job_the_slowest_are_kept(monkeypatch):
    monkeypatch.setattr(keeping, "MAX_RANKS", 2)
    found = history([{0: 1.0, 1: 3.0, 2: 1.1, 3: 2.0}]).newest()
    assert (found.ranks, found.num_ranks) == ((1, 3), 4)


def test_ranks_are_ordered_by_their_mesh():
    """Two stages of two replicas, numbered so that neighbours are of different stages."""
    groups = [group("pp", 0, 1), group("pp", 2, 3), group("dp", 0, 2), group("dp", 1, 3)]
    assert in_mesh_order(range(4), groups) == ("pp x dp", [0, 2, 1, 3])
    assert in_mesh_order([3, 1], [group("world", 1, 3)]) == ("rank", [1, 3])


def test_what_was_written_is_read_and_what_is_damaged_is_said(tmp_path):
    assert paces.load(tmp_path) is None
    found = history([dict.fromkeys(range(4), 1.0)]).newest()
    paces.save(tmp_path, found)
    assert paces.load(tmp_path) == found
    for damaged in (msgspec.structs.replace(found, nodes=("n0",)), msgspec.structs.replace(found, ranks=(0, 1))):
        paces.save(tmp_path, damaged)
        with pytest.raises(JournalError, match="not a value for each rank"):
            paces.load(tmp_path)
    (tmp_path / paces.NAME).write_bytes(b"[" * 10_000)
    with pytest.raises(JournalError, match="damaged"):
        paces.load(tmp_path)


HEAD = {
    "run": "r1", "status": "running", "is_gone": False, "step": 7, "step_s": None, "last_step_at": None,
    "is_over": False, "needs_you": False, "incident": None, "now": "nothing wrong",
}  # fmt: skip


@pytest.mark.parametrize("width", [40, 80, 200])
def test_the_terminal_shows_it_in_any_width(width):
    rounds = [{**dict.fromkeys(range(4), 1.0), 1: 1.0 + 0.01 * k} for k in range(60)]
    page = msgspec.to_builtins(stragglers_page(history(rounds).newest()))
    page["lines"][0]["node"] = "n\x1b[31m" + "x" * 99
    shown = render_top({"head": HEAD, "ranks": page}, Look(view="ranks", width=width, height=24))
    assert len(shown) == 24
    assert all(len(line) <= width for line in shown)
    assert "\x1b" not in "".join(shown)
    assert any("▓" in line for line in shown)


def test_the_terminal_finds_a_node_and_says_when_nothing_is_known():
    page = msgspec.to_builtins(stragglers_page(history([dict.fromkeys(range(4), 1.0)]).newest()))
    found = render_top({"head": HEAD, "ranks": page}, Look(view="ranks", find="n1", height=0))
    assert [line.split()[0] for line in found if " n1 " in line] == ["2", "3"]
    assert not any(" n0 " in line for line in found)
    unknown = render_top({"head": HEAD}, Look(view="ranks", height=0))
    assert any("no step of single ranks was measured" in line for line in unknown)
