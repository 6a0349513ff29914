"""What an incident says of the trace of its slow rank, and whose word counts."""

from everstep.core.state.policy import Policy
from everstep.journal.fold import fold
from everstep.journal.view import IncidentView, RunView
from everstep.model.events import RankTraced
from everstep.model.record import Header
from everstep.model.spec import RunSpec
from everstep.report.asjson import incident_json
from everstep.report.incidents.incident import render_incident, trace_text
from everstep.testing.cluster import Cluster


def slow() -> Cluster:
    made = Cluster(RunSpec(program="train.py", num_slots=2, nproc_per_node=2), Policy())
    made.start()
    made.train(10)
    made.anomaly("ES-S10", 3)
    return made


def shown(made: Cluster) -> tuple[RunView, IncidentView]:
    view = fold(Header(run="r", everstep_version="0.1.0", policy={}), made.records)
    return view, view.incidents["i1"]


def told(made: Cluster, **other: object) -> None:
    said = {"node": "n1", "generation": 0, "incident": "i1", "rank": 3, "file": "traces/i1-rank-3.json"}
    said |= {"num_bytes": 20_480, "seconds": 3.01}
    made.feed(RankTraced(at=made.clock.now, **{**said, **other}))  # type: ignore[arg-type]


def test_the_incident_names_the_file_and_its_host() -> None:
    made = slow()
    told(made)
    view, incident = shown(made)
    text = render_incident(view, incident)
    assert "\ntrace\n  rank 3, 3.0 s: traces/i1-rank-3.json in the run directory on " in text
    assert "(20 KiB): open it in https://ui.perfetto.dev" in text
    trace = incident_json(view, incident)["trace"]
    assert (trace["file"], trace["num_bytes"]) == ("traces/i1-rank-3.json", 20_480)


def test_why_there_is_none_is_said() -> None:
    made = slow()
    assert trace_text(*shown(made)) == "rank 3: nothing was heard of it from n1"
    told(made, file="", why="the ranks are being stopped")
    assert trace_text(*shown(made)) == "rank 3: none: the ranks are being stopped"


def test_tracks_that_are_missing_are_named() -> None:
    made = slow()
    told(made, why="stacks: no py-spy")
    assert "(20 KiB; missing: stacks: no py-spy)" in trace_text(*shown(made))


def test_only_the_node_that_was_asked_is_believed_and_once() -> None:
    made = slow()
    for lie in ({"node": "n0"}, {"rank": 2}, {"generation": 5}, {"incident": "i9"}):
        told(made, file="traces/lie.json", **lie)
    assert "nothing was heard" in trace_text(*shown(made))
    told(made)
    told(made, file="traces/lie.json")
    assert "traces/i1-rank-3.json" in trace_text(*shown(made))


def test_what_an_agent_says_is_printed_without_control_characters() -> None:
    made = slow()
    told(made, file="traces/\x1b[2J.json", why="\x1b]0;owned\x07")
    assert "\x1b" not in render_incident(*shown(made))


def test_other_incidents_say_nothing_of_traces() -> None:
    made = slow()
    made.anomaly("ES-N01", 0)
    view, _ = shown(made)
    assert "\ntrace\n" not in render_incident(view, view.incidents["i2"])
