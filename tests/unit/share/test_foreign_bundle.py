"""A bundle of a run that somebody else wrote holds what is in that run's directory, and nothing of the reader's."""

import argparse
import io
import tarfile
from pathlib import Path

import pytest

from everstep.cli.reading import open_run
from everstep.cli.share import bundle

GOLDEN = Path(__file__).parents[2] / "golden/journal.jsonl"
SECRET = "the reader's own words"


@pytest.fixture
def run(tmp_path):
    """Its journal names an incident and a node so that they lead to files of the reader's."""
    mine = tmp_path / "mine"
    (mine / "deeper").mkdir(parents=True)
    for name in ("notes.txt", "agent.log", "deeper/agent.log"):
        (mine / name).write_text(SECRET)
    folder = tmp_path / "run"
    (folder / "evidence").mkdir(parents=True)
    (folder / "nodes").mkdir()
    (folder / "nodes/n1").symlink_to(mine)
    journal = (
        GOLDEN.read_text()
        .replace('"i4"', '"../../mine"')
        .replace('"n2"', '"../../mine/deeper"')
        .replace('"n0"', '"\\u0000"')
    )
    (folder / "journal.jsonl").write_text(journal)
    return folder


def test_what_a_foreign_journal_names_leads_to_no_file_of_the_readers(run):
    opened = open_run(str(run), None)
    incident = opened.view.incidents["../../mine"]
    with tarfile.open(fileobj=io.BytesIO(bundle.pack(opened, incident, "b", with_logs=True).whole())) as packed:
        names = packed.getnames()
        texts = [packed.extractfile(name).read().decode() for name in names]
    assert not any(SECRET in text for text in texts)
    assert not any(".." in name for name in names)


def test_the_file_that_is_written_is_in_this_directory(run, tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    given = argparse.Namespace(words=[str(run)], run_dir=None, out=None, no_logs=False)
    assert bundle.run(given) == 0
    assert [path.parent.name for path in tmp_path.rglob("*.tar.gz")] == ["here"]
