"""Everstep's home is this user's alone, whatever the umask: it says what ranks import, and who is quarantined."""

import os
import stat
from pathlib import Path

import pytest

from everstep.agent.processes import ahead
from everstep.health.rules import HealthEvent, Kind
from everstep.health.store import Store
from everstep.journal.runs import make_run_dir, register


@pytest.mark.parametrize("umask", [0, 0o022])
def test_nothing_below_the_home_is_readable_to_others(tmp_path: Path, monkeypatch, umask: int) -> None:
    home = tmp_path / "made/home"
    monkeypatch.setenv("EVERSTEP_HOME", str(home))
    before = os.umask(umask)
    try:
        run = make_run_dir("r1")
        register("r1", run)
        ahead.write(home / "ahead/x.json", ahead.Ahead(modules=()))
        Store().record(HealthEvent(host="n1", at=1.0, kind=Kind.ALERT, why="w"))
    finally:
        os.umask(before)
    found = [home, *home.rglob("*")]
    assert len(found) > 6
    open_ones = [each for each in found if not each.is_symlink() and stat.S_IMODE(each.stat().st_mode) & 0o077]
    assert open_ones == []


def test_a_home_that_is_shared_on_purpose_stays_so(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home").chmod(0o750)
    monkeypatch.setenv("EVERSTEP_HOME", str(tmp_path / "home"))
    Store().record(HealthEvent(host="n1", at=1.0, kind=Kind.ALERT, why="w"))
    assert stat.S_IMODE((tmp_path / "home").stat().st_mode) == 0o750
