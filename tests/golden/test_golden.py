"""One journal, and what every reading verb says about it. The journal is kept as it was written, for ever readable."""

import importlib.util
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from everstep.cli.main import main
from everstep.goodput.figures import goodput_of
from everstep.journal.fold import Fold, fold
from everstep.journal.history import history_of
from everstep.journal.load import load_run
from everstep.journal.reader import read_journal
from everstep.journal.view import RunView
from everstep.report import asjson
from everstep.report.goodput import render_goodput
from everstep.report.incidents.explain import render_explanation
from everstep.report.incidents.incident import render_incident, render_incidents
from everstep.report.now.narrate import Narrator
from everstep.report.now.status import render_status
from everstep.report.parts.asked import Asked

FOLDER = Path(__file__).parent
JOURNAL = FOLDER / "journal.jsonl"
ASKED = Asked(at=1795230265.0, controller_pid=None)
INCIDENTS = ("i1", "i2", "i3", "i4")

Check = Callable[[str, str], None]


@pytest.fixture(scope="module")
def view() -> RunView:
    return load_run(JOURNAL)


def after(seq: int) -> RunView:
    """The run as it was when this record was the last."""
    reading = read_journal(JOURNAL)
    return fold(reading.header, [entry for entry in reading.entries if entry.seq <= seq])


def status_at(seq: int, controller_pid: int | None = 3001) -> str:
    view = after(seq)
    assert view.last_at is not None
    asked = Asked(at=view.last_at + 0.25, controller_pid=controller_pid)
    now = asked.at if controller_pid else None
    return render_status(view, goodput_of(history_of(view, now)), asked)


def test_status(view: RunView, check_golden: Check) -> None:
    check_golden("out/status.txt", render_status(view, goodput_of(history_of(view)), ASKED))


@pytest.mark.parametrize(
    ("name", "seq"),
    [("starting", 4), ("running", 21), ("stopping-ranks", 24), ("forming", 28), ("agent-lost", 56), ("failing", 72)],
)
def test_status_of_a_live_run(name: str, seq: int, check_golden: Check) -> None:
    check_golden(f"out/status-{name}.txt", status_at(seq))


def test_status_when_the_controller_is_gone(check_golden: Check) -> None:
    check_golden("out/status-controller-gone.txt", status_at(21, controller_pid=None))


def test_incidents(view: RunView, check_golden: Check) -> None:
    check_golden("out/incident-ls.txt", render_incidents(view, ASKED))


@pytest.mark.parametrize("name", INCIDENTS)
def test_incident(name: str, view: RunView, check_golden: Check) -> None:
    check_golden(f"out/incident-{name}.txt", render_incident(view, view.incidents[name]))


@pytest.mark.parametrize("name", INCIDENTS)
def test_explanation(name: str, view: RunView, check_golden: Check) -> None:
    check_golden(f"out/explain-{name}.txt", render_explanation(view, view.incidents[name]))


def test_goodput(view: RunView, check_golden: Check) -> None:
    goodput = goodput_of(history_of(view))
    assert sum(goodput.seconds.values()) == pytest.approx(goodput.wall_s * 4, abs=1e-6)
    check_golden("out/goodput.txt", render_goodput(view, goodput, ASKED))


def test_json(view: RunView, check_golden: Check) -> None:
    goodput = goodput_of(history_of(view))
    values = {
        "status": asjson.status_json(view, goodput, ASKED),
        "incident": asjson.incident_json(view, view.incidents["i1"]),
        "explain": asjson.explanation_json(view, view.incidents["i2"]),
        "goodput": asjson.goodput_json(view, goodput, ASKED),
    }
    for name, value in values.items():
        check_golden(f"out/{name}.json", msgspec.json.format(msgspec.json.encode(value)).decode() + "\n")


def test_narration(check_golden: Check) -> None:
    reading = read_journal(JOURNAL)
    narrator = Narrator(reading.header)
    lines = [line for entry in reading.entries for line in narrator.tell(entry)]
    check_golden("out/narration.txt", "\n".join([*lines, ""]))


def test_the_fold_takes_one_record_at_a_time() -> None:
    reading = read_journal(JOURNAL)
    folding = Fold(reading.header)
    for entry in reading.entries:
        folding.add(entry)
        if isinstance(folding.view.status, str):
            goodput_of(history_of(folding.view))
    assert msgspec.to_builtins(folding.view, enc_hook=dict) == msgspec.to_builtins(
        fold(reading.header, reading.entries), enc_hook=dict
    )


def test_every_verb_reads_a_journal_cut_at_any_byte_of_its_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = JOURNAL.read_bytes()
    path = tmp_path / "journal.jsonl"
    last_begins = whole[:-1].rindex(b"\n") + 1
    for cut in range(last_begins, len(whole), 97):
        path.write_bytes(whole[:cut])
        assert main(["status", "--run-dir", str(tmp_path)]) == 0
        out = capsys.readouterr().out
        assert "controller gone since" in out
        torn = cut - last_begins
        assert (f"last {torn:,} byte" in out) == (torn > 0)
    for verb in (["incident"], ["incident", "i4"], ["explain", "i4"], ["goodput"], ["goodput", "--json"]):
        assert main([*verb, "--run-dir", str(tmp_path)]) == 0
        assert capsys.readouterr().out


def test_the_script_still_tells_the_same_story(tmp_path: Path, view: RunView) -> None:
    """Not byte for byte: records grow fields, and the old journal stays as it was written."""
    spec = importlib.util.spec_from_file_location("make_journal", FOLDER / "make_journal.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    (tmp_path / "journal.jsonl").write_bytes(script.journal_bytes())
    made = load_run(tmp_path / "journal.jsonl")
    assert made.finish == view.finish
    assert [(i.id, i.verdict.code, i.outcome, i.lost_steps) for i in made.incidents.values()] == [
        (i.id, i.verdict.code, i.outcome, i.lost_steps) for i in view.incidents.values()
    ]
    assert goodput_of(history_of(made)).seconds == pytest.approx(goodput_of(history_of(view)).seconds)


def test_a_copy_elsewhere_reads_the_same(tmp_path: Path, view: RunView) -> None:
    shutil.copy(JOURNAL, tmp_path / "journal.jsonl")
    assert msgspec.to_builtins(load_run(tmp_path / "journal.jsonl"), enc_hook=dict) == msgspec.to_builtins(
        view, enc_hook=dict
    )
