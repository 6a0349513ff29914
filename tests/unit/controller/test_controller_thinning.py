"""Old generations are recorded less often, and nothing that matters is missing."""

import asyncio
from pathlib import Path

from everstep.controller.record.thinning import MAX_INTERVAL_S, RECORDS_PER_S, Thinning
from everstep.journal.beside.live import load_live
from everstep.model.events import ProgressReported
from everstep.model.facts import RankAccount
from everstep.model.record import Record


def progress(at: float, last_step: int = 0, node: str = "n0", generation: int = 0) -> ProgressReported:
    account = RankAccount(rank=0, spawned_at=0.0, last_step=last_step)
    return ProgressReported(at=at, node=node, generation=generation, accounts=(account,))


def recorded(thinning: Thinning, event: ProgressReported) -> bool:
    if thinning.holds_back(event, event.at):
        return False
    thinning.note(Record(seq=1, at=event.at, gen=0, event=event))
    return True


def test_a_young_generation_is_recorded_in_full_and_an_old_one_every_half_minute(tmp_path: Path) -> None:
    thinning = Thinning(tmp_path / "progress.json")
    times = [at for at in range(0, 10_000, 2) if recorded(thinning, progress(float(at)))]
    assert times[:30] == list(range(0, 60, 2))
    gaps = {later - earlier for earlier, later in zip(times[-20:], times[-19:], strict=False)}
    assert gaps == {MAX_INTERVAL_S}


def test_what_is_held_is_the_newest_of_each_node_and_taken_once(tmp_path: Path) -> None:
    thinning = Thinning(tmp_path / "progress.json")
    for node in ("n0", "n1"):
        assert recorded(thinning, progress(0.0, node=node))
    assert not recorded(thinning, progress(0.5, last_step=1))
    assert not recorded(thinning, progress(0.6, last_step=2))
    assert [event.accounts[0].last_step for event in thinning.take()] == [2]
    assert thinning.take() == []


def test_a_new_generation_is_never_held_back(tmp_path: Path) -> None:
    thinning = Thinning(tmp_path / "progress.json")
    assert recorded(thinning, progress(0.0))
    assert recorded(thinning, progress(0.1, generation=1))


def test_the_reading_verbs_find_it_on_disk_and_garbage_is_nothing(tmp_path: Path) -> None:
    path = tmp_path / "progress.json"
    thinning = Thinning(path)
    assert recorded(thinning, progress(0.0))
    assert not recorded(thinning, progress(0.5, last_step=7))
    asyncio.run(thinning.save())
    assert load_live(path).events[0].accounts[0].last_step == 7
    path.write_bytes(b"{cut")
    assert load_live(path).events == ()
    assert load_live(tmp_path / "absent").events == ()


def test_what_a_node_says_while_its_report_is_on_the_way_to_the_disk_is_held(tmp_path: Path) -> None:
    """All that comes in one breath is looked at before the first of it is on record."""
    thinning = Thinning(tmp_path / "progress.json")
    assert recorded(thinning, progress(0.0))
    found = [thinning.holds_back(progress(10.0, last_step=step), 10.0) for step in range(1, 9)]
    assert found == [False] + [True] * 7
    assert [event.accounts[0].last_step for event in thinning.take()] == [8]


def test_a_large_fleet_that_started_together_is_not_recorded_all_at_once(tmp_path: Path) -> None:
    thinning = Thinning(tmp_path / "progress.json")
    nodes = [f"n{number}" for number in range(1_000)]
    for node in nodes:
        assert recorded(thinning, progress(0.0, node=node))
    counts = [
        sum(recorded(thinning, progress(second + number / 1_000, node=node)) for number, node in enumerate(nodes))
        for second in range(1, 60)
    ]
    assert max(counts) <= 2 * RECORDS_PER_S
    assert 4 * len(nodes) <= sum(counts) <= 6 * len(nodes)  # each every ten seconds
