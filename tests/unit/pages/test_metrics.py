"""The metrics: only what is known, under one set of names in code, docs, alert rules and dashboards."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import msgspec
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as plain

from everstep.analyzer.observations.records import RankTiming
from everstep.controller.metrics import step_ratios
from everstep.goodput.figures import goodput_of
from everstep.journal.fold import Fold
from everstep.journal.history import history_of
from everstep.journal.load import load_run
from everstep.journal.reader import read_journal
from everstep.metrics.exposition import render
from everstep.metrics.histograms import buckets_of
from everstep.metrics.names import FAMILIES, Kind
from everstep.metrics.of_controller import MAX_NODES, MAX_SENSES, Ourselves, add_controller
from everstep.metrics.of_run import MAX_KINDS, Shares, add_run
from everstep.metrics.rising import Rising
from everstep.metrics.samples import Samples
from everstep.model.events import RuntimeFaulted
from everstep.model.record import Header

ROOT = Path(__file__).parents[3]
MONITORING = ROOT / "monitoring"
JOURNAL = ROOT / "tests/golden/journal.jsonl"
OPENMETRICS = "application/openmetrics-text; version=1.0.0"
FILES = sorted([*MONITORING.rglob("*.json"), *MONITORING.rglob("*.yml")])

BUSY = Ourselves(
    dropped={"garbage": 2},
    notices={"chat": {"sent": 3}},
    silent_s={"n0": 0.5},
    step_ratios={"n0": 1.2},
    senses={"n0": {"kernel log": "", "interfaces": "not as this user", "nvml": "unsupported: none"}},
    append_seconds=0.002,
    lag_seconds=0.5,
    is_writable=True,
)


def text_of(view, ourselves=BUSY, accept="", *, shares=None):
    samples = Samples()
    add_run(samples, view, view.last_at or 0.0, shares)
    add_controller(samples, ourselves)
    body, kind = render(samples, accept)
    return body.decode(), kind


def new_run(run="r1"):
    return Fold(Header(run=run, everstep_version="0", policy={})).view


def recorded():
    view = load_run(JOURNAL)
    goodput = goodput_of(history_of(view))
    return view, Shares(goodput=goodput, ratios={"1h": goodput.ettr})


def values(text, name):
    return {
        tuple(sorted(sample.labels.items())): sample.value
        for family in plain(text)
        for sample in family.samples
        if sample.name == name
    }


def test_what_is_not_known_is_absent():
    told = {family.name for family in plain(text_of(new_run(), Ourselves())[0])}
    assert told == {"everstep_build_info", "everstep_run_state", "everstep_incidents_open", "everstep_nodes"}


def test_labels_are_escaped_and_read_back():
    text, _ = text_of(new_run('a"b\\c\nd'))
    assert {dict(labels)["run"] for labels in values(text, "everstep_incidents_open")} == {'a"b\\c\nd'}


@pytest.mark.parametrize(("accept", "parse"), [("", plain), (OPENMETRICS, openmetrics)])
def test_a_recorded_run_is_read_by_the_official_parser(accept, parse):
    view, shares = recorded()
    text, kind = text_of(view, accept=accept, shares=shares)
    families = list(parse(text))
    assert ("openmetrics" in kind) == bool(accept)
    for family in families:
        for sample in family.samples:
            name = sample.name if sample.name in FAMILIES else re.sub(r"_(bucket|sum|count)$", "", sample.name)
            known = FAMILIES[name]
            assert set(sample.labels) - {"le"} == set(known.labels), sample
            assert "docs/metrics.md#" in family.documentation


def test_goodput_and_incidents_are_those_of_the_view():
    view, shares = recorded()
    text, _ = text_of(view, shares=shares)
    seconds = values(text, "everstep_run_seconds_total")
    assert sum(seconds.values()) == pytest.approx(shares.goodput.wall_s * shares.goodput.num_ranks)
    over = [incident for incident in view.incidents.values() if not incident.is_open]
    assert sum(values(text, "everstep_incidents_total").values()) == len(over)
    assert sum(values(text, "everstep_run_state").values()) == 1


def test_a_sample_of_ranks_stands_for_all():
    view, shares = recorded()
    whole = values(text_of(view, shares=shares)[0], "everstep_run_seconds_total")
    half = msgspec.structs.replace(shares.goodput, num_ranks=shares.goodput.num_ranks // 2)
    doubled = values(text_of(view, shares=Shares(goodput=half))[0], "everstep_run_seconds_total")
    assert all(doubled[key] == pytest.approx(2 * value) for key, value in whole.items())


def test_figures_about_the_controller():
    text, _ = text_of(new_run())
    assert 'everstep_stale_messages_total{kind="garbage"} 2.0\n' in text
    assert 'everstep_notices_total{outcome="sent",receiver="chat"} 3.0\n' in text.replace(
        'receiver="chat",outcome="sent"', 'outcome="sent",receiver="chat"'
    )
    probes = {dict(labels)["probe"]: value for labels, value in values(text, "everstep_probe_up").items()}
    assert probes == {"kernel-log": 1.0, "interfaces": 0.0}, "what a node cannot have is absent"


def test_a_large_fleet_has_bounded_series():
    many = {f"n{number}": float(number) for number in range(12_500)}
    found = values(text_of(new_run(), Ourselves(silent_s=many))[0], "everstep_heartbeat_age_seconds")
    assert len(found) == MAX_NODES
    assert max(found.values()) == 12_499.0


def test_a_histogram_counts_everything_once():
    buckets = buckets_of([(0.5, 2), (2.0, 1), (99.0, 4)], (1.0, 3.0))
    assert buckets.counts == ((1.0, 2), (3.0, 3), (float("inf"), 7))
    assert buckets.total == pytest.approx(1.0 + 2.0 + 396.0)
    assert buckets_of([], (1.0,)) is None


def test_a_name_or_label_of_nobody_is_refused():
    with pytest.raises(KeyError):
        Samples().add("everstep_generation", 1.0, rank="3")


def test_a_node_is_as_slow_as_its_slowest_rank():
    timings = [RankTiming(rank=rank, compute_s=s) for rank, s in enumerate((1.0, 1.0, 1.0, 2.0))]
    assert step_ratios(timings, {0: "n0", 1: "n0", 2: "n1", 3: "n1"}) == {"n0": 1.0, "n1": 2.0}
    assert step_ratios([], {}) == {}


def test_code_and_docs_name_the_same_metrics():
    rows = re.findall(
        r"^\| <a id=\"(\w+)\"></a>`(\w+)` \| (\w+) \| ([\w, ]*) \|", (ROOT / "docs/metrics.md").read_text(), re.M
    )
    told = {
        name: (kind, tuple(filter(None, labels.split(", ")))) for anchor, name, kind, labels in rows if anchor == name
    }
    assert told == {family.name: (str(family.kind), family.labels) for family in FAMILIES.values()}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_alerts_and_dashboards_use_the_names_and_labels_of_the_code(path):
    text = path.read_text().replace('\\"', '"')
    for name, labels in re.findall(r"\b(everstep_\w+)\b(?:\{([^}]*)\})?", text):
        base = name if name in FAMILIES else re.sub(r"_(bucket|sum|count)$", "", name)
        assert base in FAMILIES, name
        assert name == base or FAMILIES[base].kind is Kind.HISTOGRAM, name
        assert set(re.findall(r"(\w+)\s*=~?", labels)) <= {*FAMILIES[base].labels, "le", "instance", "job"}, (
            name,
            labels,
        )


def test_the_dashboards_show_every_metric():
    text = "".join(path.read_text() for path in MONITORING.glob("grafana/*.json"))
    assert {name for name in FAMILIES if name not in text} == set()
    for path in MONITORING.glob("grafana/*.json"):
        panels = json.loads(path.read_text())["panels"]
        assert len({panel["id"] for panel in panels}) == len(panels)


def alerts():
    return set(re.findall(r"- alert: (\w+)", (MONITORING / "prometheus/everstep.rules.yml").read_text()))


def test_every_alert_is_tested_and_documented():
    tested = set(re.findall(r"alertname=\"(\w+)\"", (MONITORING / "prometheus/everstep.test.yml").read_text()))
    documented = set(re.findall(r"^\| `(Everstep\w+)`", (ROOT / "docs/metrics.md").read_text(), re.M))
    assert alerts() == tested == documented


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool on this machine")
def test_every_alert_fires_where_it_should_and_only_there():
    done = subprocess.run(
        ["promtool", "test", "rules", "everstep.test.yml"], cwd=MONITORING / "prometheus", capture_output=True
    )
    assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()


def test_a_rank_that_says_anything_makes_no_endless_set_of_labels():
    view = new_run()
    said = ["snapshots", "snapshots: a cause", *(f"lie_{n}" for n in range(500)), 'a"}\n 1 2', "x" * 2000, ""]
    for where in said:
        view.runtime_faults.append(RuntimeFaulted(at=1.0, node="n0", rank=0, generation=0, where=where, why="w"))
    text, _ = text_of(view, msgspec.structs.replace(BUSY, senses={"n0": {f"sense {n}": "" for n in range(500)}}))
    found = {family.name: family.samples for family in plain(text)}
    faults = {sample.labels["kind"]: sample.value for sample in found["everstep_worker_errors"]}
    assert faults["snapshots"] == 2
    assert sum(faults.values()) == len(said)
    assert len(faults) <= MAX_KINDS + 1
    assert all(len(kind) < 50 for kind in faults)
    assert len(found["everstep_probe_up"]) == MAX_SENSES


def test_the_seconds_of_a_live_run_never_go_down():
    reading, rising, before = read_journal(JOURNAL), Rising(), {}
    fold, lowered = Fold(reading.header), 0.0
    for entry in reading.entries:
        fold.add(entry)
        if fold.view.spec is None or fold.view.last_at is None:
            continue
        goodput = goodput_of(history_of(fold.view, None if fold.view.is_over else fold.view.last_at))
        samples = Samples()
        add_run(samples, fold.view, fold.view.last_at, Shares(goodput=goodput, rising=rising))
        found = {s.labels["bucket"]: s.value for s in dict(samples.items())["everstep_run_seconds_total"]}
        assert all(found[bucket] >= seconds for bucket, seconds in before.items())
        lowered += sum(goodput.seconds[bucket] < found[str(bucket)] for bucket in goodput.seconds)
        before = found
    assert lowered > 0
    assert sum(before.values()) < 1.1 * goodput.wall_s * goodput.num_ranks
