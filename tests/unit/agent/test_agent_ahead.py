"""What ranks are to import ahead, as one of them told it."""

import sys

from hypothesis import given
from hypothesis import strategies as st

from everstep.agent.processes import ahead
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
