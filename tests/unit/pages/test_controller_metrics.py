"""/metrics says only what is known, in Prometheus' format, under the documented names."""

import re
from pathlib import Path

import everstep.controller.metrics as metrics
from everstep.controller.metrics import Ourselves, render_metrics
from everstep.journal.fold import Fold
from everstep.model.record import Header

DOCS = Path(__file__).parents[3] / "docs" / "api.md"
NOTHING = Ourselves(dropped={}, roles={})


def names(text):
    return {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}


def new_run(run="r1"):
    return Fold(Header(run=run, everstep_version="0", policy={})).view


def test_what_is_not_known_is_absent():
    told = names(render_metrics(new_run(), None, NOTHING))
    assert told == {"everstep_build_info", "everstep_run_state", "everstep_incidents_open"}


def test_labels_are_escaped():
    text = render_metrics(new_run('a"b\\c\nd'), None, NOTHING)
    assert 'run="a\\"b\\\\c\\nd"' in text
    assert all(line.startswith(("#", "everstep_")) for line in text.splitlines())


def test_code_and_docs_name_the_same_metrics():
    in_code = set(re.findall(r'"(everstep_\w+)"', Path(metrics.__file__).read_text()))
    in_docs = set(re.findall(r"^\| `(everstep_\w+)`", DOCS.read_text(), re.MULTILINE))
    assert in_code == in_docs


def test_figures_about_the_controller():
    text = render_metrics(new_run(), None, Ourselves(dropped={"garbage": 2}, roles={"active": 1}, lag_seconds=0.5))
    assert 'everstep_stale_messages_total{kind="garbage"} 2\n' in text
    assert 'everstep_nodes{run="r1",role="active"} 1\n' in text
    assert "everstep_controller_loop_lag_seconds 0.5\n" in text
    assert "everstep_journal_append_seconds" not in text
