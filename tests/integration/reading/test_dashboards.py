"""Every query of the dashboards, asked of a real Prometheus that holds a recorded run: each must answer with data.

The run is the golden journal with what it has none of: a checkpoint on disk, a trusted step, a fault of our own.
Its metrics are rendered as at each of its records and filled in by `promtool`, so nobody waits for a scrape.
"""

import json
import shutil
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from free_ports import free_port

from everstep.goodput.figures import goodput_of
from everstep.journal.fold import Fold
from everstep.journal.history import history_of
from everstep.journal.reader import read_journal
from everstep.metrics.exposition import render
from everstep.metrics.of_controller import Ourselves, add_controller
from everstep.metrics.of_run import Shares, add_run
from everstep.metrics.rising import Rising
from everstep.metrics.samples import Samples
from everstep.model.actions import TrustStep
from everstep.model.events import CheckpointCommitted, RuntimeFaulted
from everstep.model.facts import Checkpoint
from everstep.model.record import Record

ROOT = Path(__file__).parents[3]
READING = read_journal(ROOT / "tests/golden/journal.jsonl")
DASHBOARDS = sorted((ROOT / "monitoring/grafana").glob("*.json"))
OPENMETRICS = "application/openmetrics-text; version=1.0.0"
pytestmark = pytest.mark.skipif(
    not (shutil.which("prometheus") and shutil.which("promtool")), reason="no Prometheus on this machine"
)


def entries() -> Iterator[Record]:
    """The golden run; in its middle a checkpoint, a trusted step, and a fault of our own."""
    for place, entry in enumerate(READING.entries):
        assert isinstance(entry, Record)
        yield entry
        if place == len(READING.entries) // 2:
            at, gen = entry.at, entry.gen
            disk = Checkpoint(step=20, path="/c/20", world_size=2, at=at, is_trusted=True)
            events = (
                CheckpointCommitted(at=at, node="n0", step=20, checkpoint=disk),
                RuntimeFaulted(at=at, node="n0", rank=0, generation=gen, where="snapshots", why="a test"),
            )
            for event in events:
                trust = TrustStep(why="equal", node="n0", generation=gen, step=20)
                yield Record(seq=entry.seq, at=at, gen=gen, event=event, actions=(trust,))


def openmetrics() -> Iterator[str]:
    """All samples with their times, moment by moment."""
    fold, rising = Fold(READING.header), Rising()
    for entry in entries():
        fold.add(entry)
        view, at = fold.view, fold.view.last_at
        if view.spec is None or at is None:
            continue
        goodput = goodput_of(history_of(view, None if view.is_over else at))
        ratios = dict.fromkeys(("1h", "24h", "7d"), goodput.ettr)
        samples = Samples()
        add_run(samples, view, at, Shares(goodput=goodput, ratios=ratios, rising=rising))
        add_controller(samples, ourselves(view.last_seq))
        for line in render(samples, OPENMETRICS)[0].decode().splitlines():
            if not line.startswith("#"):
                yield f"{line} {at:.3f}"


def ourselves(number: int) -> Ourselves:
    return Ourselves(
        dropped={"garbage": number}, notices={"chat": {"sent": 3}}, silent_s={"n0": 0.5}, step_ratios={"n0": 1.2},
        senses={"n0": {"kernel log": "not as this user", "nvml": ""}}, append_seconds=0.002, lag_seconds=0.01,
        is_writable=True,
    )  # fmt: skip


class Prometheus:
    def __init__(self, folder: Path) -> None:
        filled = folder / "filled.txt"
        filled.write_text("\n".join([*openmetrics(), "# EOF", ""]))
        made = ["promtool", "tsdb", "create-blocks-from", "openmetrics", str(filled), str(folder / "tsdb")]
        subprocess.run(made, check=True, capture_output=True, timeout=120)
        (folder / "prometheus.yml").write_text("{}")
        self.port = free_port()
        with (folder / "said.txt").open("wb") as said:
            self.process = subprocess.Popen(
                ["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/tsdb",
                 "--storage.tsdb.retention.time=100y", f"--web.listen-address=127.0.0.1:{self.port}"],
                stdout=subprocess.DEVNULL, stderr=said,
            )  # fmt: skip

    def ask(self, **query: str | float) -> list[dict[str, object]]:
        """The series of an answer; it is waited for, as Prometheus needs some seconds to begin."""
        kind = "query_range" if "step" in query else "query"
        address = f"http://127.0.0.1:{self.port}/api/v1/{kind}?{urllib.parse.urlencode(query)}"
        end = time.monotonic() + 60
        while True:
            try:
                with urllib.request.urlopen(address, timeout=30) as answer:
                    return list(msgspec.json.decode(answer.read())["data"]["result"])
            except urllib.error.HTTPError as error:
                if error.code != 503 or time.monotonic() > end:
                    raise AssertionError(f"{query}: {error.read().decode()}") from error
            except OSError:
                assert self.process.poll() is None
                assert time.monotonic() < end
            time.sleep(0.2)


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory):
    started = Prometheus(tmp_path_factory.mktemp("prometheus"))
    try:
        yield started
    finally:
        started.process.terminate()
        started.process.wait(30)


def queries() -> Iterator[tuple[str, str, bool]]:
    """(where, query, whether it is asked of one moment)"""
    for path in DASHBOARDS:
        board = json.loads(path.read_text())
        for note in board["annotations"]["list"]:
            yield f"{path.stem}: {note['name']}", note["expr"], False
        for panel in board["panels"]:
            for target in panel.get("targets", ()):
                yield f"{path.stem}: {panel['title']}", target["expr"], bool(target.get("instant"))


@pytest.mark.parametrize(("where", "query", "is_instant"), list(queries()))
def test_each_query_of_the_dashboards_answers_with_data(prometheus, where, query, is_instant):
    first, last = READING.entries[0].at, READING.entries[-1].at
    asked = query.replace("$run", ".*")
    assert "$" not in asked, "a variable that nobody fills in"
    found = prometheus.ask(query=asked, time=last) if is_instant else prometheus.ask(
        query=asked, start=first, end=last, step=1
    )  # fmt: skip
    assert found, f"{where}: no data for {query}"
    values = [value for series in found for _, value in (series.get("values") or [series["value"]])]
    assert any(value != "NaN" for value in values), f"{where}: nothing but NaN for {query}"


def test_a_query_without_data_is_seen(prometheus):
    last = READING.entries[-1].at
    assert prometheus.ask(query="everstep_run_steps", time=last) == []
    assert [series["value"][1] for series in prometheus.ask(query="everstep_run_step", time=last)] == ["155"]
