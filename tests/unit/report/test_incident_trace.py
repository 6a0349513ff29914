"""What an incident says of the trace of its slow rank, wherever it is shown, and whose word counts."""

import html

import msgspec

from everstep.core.state.policy import Policy
from everstep.journal.fold import fold
from everstep.journal.view import IncidentView, RunView
from everstep.model.events import RankTraced
from everstep.model.record import Header
from everstep.model.spec import RunSpec
from everstep.report.asjson import incident_json
from everstep.report.handing.html import incident_html
from everstep.report.handing.markdown import incident_markdown
from everstep.report.incidents.incident import render_incident
from everstep.report.incidents.traced import trace_lines
from everstep.report.picture.incidents import incident_page
from everstep.testing.cluster import Cluster


def slow(policy: Policy = Policy()) -> Cluster:  # noqa: B008 - frozen
    made = Cluster(RunSpec(program="train.py", num_slots=2, nproc_per_node=2), policy)
    made.start()
    made.train(10)
    made.anomaly("ES-S10", 3)
    return made


def shown(made: Cluster, name: str = "i1") -> tuple[RunView, IncidentView]:
    policy = {key: value for key, value in msgspec.to_builtins(made.policy).items() if isinstance(value, int | float)}
    view = fold(Header(run="r", everstep_version="0.1.0", policy=policy), made.records)
    return view, view.incidents[name]


def told(made: Cluster, **other: object) -> None:
    said = {"node": "n1", "generation": 0, "incident": "i1", "rank": 3, "file": "traces/i1-rank-3.json"}
    said |= {"path": "/home/u/runs/r/traces/i1-rank-3.json", "num_bytes": 20_480, "seconds": 3.01}
    made.feed(RankTraced(at=made.clock.now, **{**said, **other}))  # type: ignore[arg-type]


def every_form(made: Cluster, name: str = "i1") -> dict[str, str]:
    """What people see of the incident's trace."""
    view, incident = shown(made, name)
    page = incident_page(view, incident)
    return {
        "show": render_incident(view, incident),
        "--md": incident_markdown(page, "r").replace("\\", ""),  # what keeps a rank's words from being markup
        "--html": html.unescape(incident_html(page, "r")),
        "page": "\n".join((*page.trace, page.trace_opens)),
    }


def test_every_form_names_the_file_its_host_and_how_to_open_it() -> None:
    made = slow()
    told(made)
    view, _ = shown(made)
    for form, text in every_form(made).items():
        assert "rank 3, 3.0 s: traces/i1-rank-3.json in the run directory (20 KiB)" in text, form
        assert f"recorded on {view.nodes['n1'].host} as /home/u/runs/r/traces/i1-rank-3.json" in text, form
        assert "https://ui.perfetto.dev (Open trace file)" in text, form
    assert "\ntrace\n  rank 3, 3.0 s: " in every_form(made)["show"]


def test_the_json_has_fields_for_programs() -> None:
    made = slow()
    told(made)
    view, incident = shown(made)
    trace = incident_json(view, incident)["trace"]
    assert trace == {
        "rank": 3,
        "node": "n1",
        "host": view.nodes["n1"].host,
        "generation": 0,
        "taken": True,
        "file": "traces/i1-rank-3.json",
        "path": "/home/u/runs/r/traces/i1-rank-3.json",
        "num_bytes": 20_480,
        "seconds": 3.01,
        "why": "",
        "open_with": "https://ui.perfetto.dev (Open trace file), or chrome://tracing",
    }


def test_where_there_is_none_every_form_says_why() -> None:
    made = slow()
    assert "rank 3: no trace: n1 was asked and has not answered" in every_form(made)["show"]
    told(made, file="", path="", why="the ranks are being stopped")
    for form, text in every_form(made).items():
        assert "rank 3: no trace: the ranks are being stopped" in text, form
        assert "perfetto" not in text, form
    view, incident = shown(made)
    trace = incident_json(view, incident)["trace"]
    assert (trace["taken"], trace["file"], trace["why"]) == (False, "", "the ranks are being stopped")


def test_a_budget_that_is_used_up_is_the_reason() -> None:
    made = slow(Policy(max_slow_traces=1))
    told(made)
    made.anomaly("ES-S09", 2)
    for form, text in every_form(made, "i2").items():
        assert "rank 2: no trace: 1 in this run, 1 allowed (policy max_slow_traces)" in text, form
    view, incident = shown(made, "i2")
    assert incident_json(view, incident)["trace"]["taken"] is False


def test_that_traces_are_switched_off_is_the_reason() -> None:
    made = slow(Policy(slow_trace_s=0.0))
    for form, text in every_form(made).items():
        assert "rank 3: no trace: traces are switched off (policy slow_trace_s = 0)" in text, form


def test_a_machine_that_is_evicted_instead_is_the_reason() -> None:
    spec = RunSpec(program="train.py", num_slots=2, nproc_per_node=2, num_standby=1)
    made = Cluster(spec, Policy())
    made.start()
    made.train(10)
    made.anomaly("ES-S01", 3)
    made.wait(60.0)
    assert "rank 3: no trace: the ranks were stopped at once" in every_form(made)["show"]


def test_a_record_of_an_everstep_without_traces_says_nothing() -> None:
    made = slow(Policy(slow_trace_s=0.0))
    view = fold(Header(run="r", everstep_version="0.0.9", policy={}), made.records)
    assert trace_lines(view, view.incidents["i1"]) == []


def test_tracks_that_are_missing_are_named() -> None:
    made = slow()
    told(made, why="stacks: no permission to read process 7")
    for form, text in every_form(made).items():
        assert "missing in it: stacks: no permission to read process 7" in text, form


def test_only_the_node_that_was_asked_is_believed_and_once() -> None:
    made = slow()
    for lie in ({"node": "n0"}, {"rank": 2}, {"generation": 5}, {"incident": "i9"}):
        told(made, file="traces/lie.json", **lie)
    assert "has not answered" in trace_lines(*shown(made))[0]
    told(made)
    told(made, file="traces/lie.json")
    assert "traces/i1-rank-3.json" in trace_lines(*shown(made))[0]


def test_what_an_agent_says_is_printed_without_control_characters() -> None:
    made = slow()
    bad = "\x1b]0;owned\x07<script>"
    told(made, file=f"traces/{bad}.json", path=f"/{bad}", why=bad)
    view, incident = shown(made)
    page = incident_page(view, incident)
    for text in (render_incident(view, incident), incident_markdown(page, "r"), incident_html(page, "r")):
        assert "\x1b" not in text
    assert "<script>" not in incident_html(page, "r")
    assert "\\<script\\>" in incident_markdown(page, "r")


def test_other_incidents_say_nothing_of_traces() -> None:
    made = slow()
    made.anomaly("ES-N01", 0)
    view, _ = shown(made)
    assert "\ntrace\n" not in render_incident(view, view.incidents["i2"])
