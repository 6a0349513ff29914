"""An import that is watched fails as it would have failed: no frame of ours in its traceback."""

import sys
import traceback

import pytest

from everstep.worker.parking.finder import OnImport


@pytest.fixture
def finder():
    before = list(sys.meta_path)
    made = OnImport()
    yield made
    sys.meta_path[:] = before


def failed_import(name: str) -> list[str]:
    try:
        __import__(name)
    except ImportError as error:
        return [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    pytest.fail(f"{name} was imported")


@pytest.mark.parametrize("form", ["{}.py", "{}/__init__.py"])
def test_a_broken_module_shows_its_own_lines_and_the_importing_one(tmp_path, monkeypatch, finder, form):
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("broken_seen", "broken_unseen"):
        path = tmp_path / form.format(name)
        path.parent.mkdir(exist_ok=True)
        path.write_text("from timeit import no_such_name\n")
    told = []
    finder.wait_for("broken_seen", told.append)
    seen, unseen = failed_import("broken_seen"), failed_import("broken_unseen")
    assert [each.replace("broken_seen", "broken_unseen") for each in seen] == unseen
    assert told == []
    monkeypatch.delitem(sys.modules, "broken_seen", raising=False)
