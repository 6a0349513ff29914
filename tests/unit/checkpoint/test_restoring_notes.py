"""What a restore says of itself when it is not as exact as usual: once, not on every rank."""

from types import SimpleNamespace

import pytest

from everstep.checkpoint.persist.read import reading
from everstep.worker.snapshots import restoring


@pytest.mark.parametrize(("rank", "step", "expected"), [(0, 4, 2), (0, None, 1), (1, 4, 0)])
def test_rank_0_says_what_is_not_exact(monkeypatch, capsys, rank, step, expected):
    loaded = reading.Loaded(step=step, resharded=True, notes=("scheduler begins anew",))
    monkeypatch.setattr(reading, "load_into", lambda *_, **__: loaded)
    runtime = SimpleNamespace(rank=rank, world_size=3, resume_step=4, arenas=[], restore_path="/ck", init_from="")
    assert restoring.from_disk(runtime, {}) is loaded
    said = capsys.readouterr().err.splitlines()
    assert len(said) == expected
    assert [line for line in said if "begin anew" in line and "random state" in line] == said[1:]


def test_an_exact_restore_says_nothing(monkeypatch, capsys):
    monkeypatch.setattr(reading, "load_into", lambda *_, **__: reading.Loaded(step=4))
    runtime = SimpleNamespace(rank=0, world_size=1, resume_step=4, arenas=[], restore_path="/ck", init_from="")
    restoring.from_disk(runtime, {})
    assert capsys.readouterr().err == ""
