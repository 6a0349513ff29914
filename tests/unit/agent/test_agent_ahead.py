"""What ranks are to import ahead, as one of them told it."""

import sys

from hypothesis import given
from hypothesis import strategies as st

from everstep.agent.processes import ahead
from everstep.worker.parking.variables import IDENTITY
from everstep.worker.process import modules


def test_what_is_imported_ahead_is_checked_and_kept(tmp_path):
    told = ahead.parse(["json", "os.path", "../evil", "a b", "x;y", "pkg.sub"], {"TORCH_X": "1", "HF_Y": None})
    assert told == ahead.Ahead(modules=["json", "os.path", "pkg.sub"], changed={"TORCH_X": "1", "HF_Y": None})
    ahead.write(ahead.path_in(tmp_path), told)
    assert ahead.read(ahead.path_in(tmp_path)) == told


@given(st.binary(max_size=60))
def test_a_damaged_list_is_none(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("run") / "ahead.json"
    path.write_bytes(data)
    assert ahead.read(path) in (None, ahead.Ahead())


def test_only_library_modules_are_told(tmp_path, monkeypatch):
    (tmp_path / "own_module_of_mine.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    __import__("own_module_of_mine")
    names = modules.importable_ahead()
    assert {"json", "pytest", "json.decoder"} <= set(names)
    assert not {"own_module_of_mine", "__main__", "everstep", "everstep.worker.process.modules"} & set(names)
    del sys.modules["own_module_of_mine"]


def test_what_the_launcher_says_of_a_rank_is_no_change_of_the_programs():
    """A run whose first generation ended before its first step is told by a later one."""
    before = {
        "TORCHELASTIC_ERROR_FILE": "gen-0/rank-0.json",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "HF_HOME": "a",
        "X": "1",
    }
    now = {"TORCHELASTIC_ERROR_FILE": "gen-1/rank-0.json", "TORCHELASTIC_RESTART_COUNT": "1", "TORCH_LOGS": "+all"}
    now |= {"PYTHONHASHSEED": "3", "ACCELERATE_USE_DEEPSPEED": "true"}  # no import reads them
    changed = modules.variables_changed(before, now, IDENTITY)
    assert changed == {"HF_HOME": None, "TORCH_LOGS": "+all"}


def test_how_long_an_import_took_is_a_number_of_seconds():
    for lie in (-1.0, float("nan"), float("inf"), float("-inf")):
        assert ahead.parse(["json"], {}, lie).took_s == 0.0
    assert ahead.parse(["json"], {}, 14.5).took_s == 14.5
