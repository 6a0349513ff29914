"""What an OTLP receiver over HTTP gets of a run, decoded by the official protobuf package; and receivers that fail."""

import asyncio
import gzip
import http.server
import threading
import time
from pathlib import Path

import pytest

from everstep.journal.fold import fold
from everstep.journal.reader import read_journal
from everstep.journal.runs import RunDir
from everstep.metrics.of_run import add_run
from everstep.metrics.samples import Buckets, Samples
from everstep.notices.counts import load_counts
from everstep.otlp.settings import EVERY_S, every_s, signals, why_not

pytest.importorskip("opentelemetry.exporter.otlp.proto.http")

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from everstep.otlp import exporter, sending
from everstep.otlp.exporter import Exporter

GOLDEN = Path(__file__).parents[2] / "golden/journal.jsonl"
READING = read_journal(GOLDEN)
VIEW = fold(READING.header, READING.entries)
LINES = GOLDEN.read_bytes().splitlines(keepends=True)
KINDS = {
    "/v1/metrics": ExportMetricsServiceRequest,
    "/v1/traces": ExportTraceServiceRequest,
    "/v1/logs": ExportLogsServiceRequest,
}


class Receiver(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, answer: str = "200") -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answer = answer
        self.got: dict[str, list] = {path: [] for path in KINDS}
        self.paths: list[str] = []
        self.go = threading.Event()

    def __enter__(self):
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_):
        self.go.set()
        self.shutdown()
        self.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        self.server.paths.append(self.path)
        match self.server.answer:
            case "hangs":
                self.server.go.wait(30)
            case "endless":
                self._endless()
            case "redirects":
                self.send_response(307)
                self.send_header("Location", f"{self.server.url}/elsewhere")
                self.end_headers()
            case status:
                self.server.got[self.path].append(KINDS[self.path].FromString(body))
                self.send_response(int(status))
                self.end_headers()

    def _endless(self) -> None:
        self.send_response(200)
        self.end_headers()
        while not self.server.go.is_set():
            try:
                self.wfile.write(b"x" * 65536)
            except OSError:
                return

    def log_message(self, *_args) -> None:
        pass


@pytest.fixture
def export(tmp_path, monkeypatch):
    """The golden run to its end, of which the first ten records are there when the exporter begins."""
    monkeypatch.setattr(exporter, "LOOK_S", 0.02)
    monkeypatch.setattr(exporter, "LINGER_S", 1.0)

    def exported(url: str, **environ: str) -> dict[str, dict[str, int]]:
        given = {"OTEL_EXPORTER_OTLP_ENDPOINT": url, "OTEL_EXPORTER_OTLP_TIMEOUT": "1", **environ}
        for name, value in given.items():
            monkeypatch.setenv(name, value)
        run_dir = RunDir(tmp_path)
        run_dir.journal.write_bytes(b"".join(LINES[:10]))

        async def main() -> None:
            running = asyncio.create_task(Exporter(run_dir, given, lambda: True).run())
            await asyncio.sleep(0.1)
            run_dir.journal.write_bytes(b"".join(LINES))
            await running

        asyncio.run(main())
        return load_counts(tmp_path)

    return exported


def attributes(found) -> dict:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in found}


def test_a_receiver_gets_metrics_incidents_and_phases(export, monkeypatch):
    monkeypatch.setenv("GOLDEN_TOKEN", "killed by SIGKILL")  # as if that were a secret
    with Receiver() as receiver:
        counts = export(receiver.url, OTEL_EXPORTER_OTLP_HEADERS="api-key=k", GOLDEN_TOKEN="killed by SIGKILL")
    assert {name: count["failed"] + count["dropped"] for name, count in counts.items()} == {
        "otlp-metrics": 0,
        "otlp-traces": 0,
        "otlp-logs": 0,
    }
    _assert_metrics(receiver.got["/v1/metrics"][-1])
    _assert_spans([span for request in receiver.got["/v1/traces"] for span in spans_in(request)])
    logs = [
        record for request in receiver.got["/v1/logs"] for record in request.resource_logs[0].scope_logs[0].log_records
    ]
    states = {
        (attributes(one.attributes)["everstep.incident"], attributes(one.attributes)["everstep.state"]) for one in logs
    }
    assert {(one.id, one.outcome) for one in VIEW.incidents.values()} <= states
    assert {one.event_name for one in logs} == {"everstep.incident"}
    assert any("***" in one.body.string_value for one in logs)
    assert not any("killed by SIGKILL" in one.body.string_value for one in logs)


def spans_in(request) -> list:
    return [span for scope in request.resource_spans[0].scope_spans for span in scope.spans]


def _assert_metrics(request) -> None:
    resource = attributes(request.resource_metrics[0].resource.attributes)
    assert (resource["service.name"], resource["everstep.run"]) == ("everstep", VIEW.run)
    metrics = {one.name: one for one in request.resource_metrics[0].scope_metrics[0].metrics}
    samples = Samples()
    add_run(samples, VIEW, VIEW.last_at, None)
    expected = dict(samples.items())
    assert set(expected) <= set(metrics)
    for name in ("everstep_run_step", "everstep_incidents_total", "everstep_restarts_total", "everstep_run_state"):
        kind = metrics[name].WhichOneof("data")
        assert kind == ("sum" if name.endswith("_total") else "gauge")
        points = getattr(metrics[name], kind).data_points
        told = {tuple(sorted(attributes(one.attributes).items())): one.as_double or one.as_int for one in points}
        assert told == {tuple(sorted(one.labels.items())): one.value for one in expected[name]}
    assert metrics["everstep_incidents_total"].sum.is_monotonic
    (sample,) = expected["everstep_step_duration_seconds"]
    assert isinstance(sample.value, Buckets)
    (point,) = metrics["everstep_step_duration_seconds"].histogram.data_points
    assert point.count == sum(point.bucket_counts) == sample.value.counts[-1][1]
    assert len(point.explicit_bounds) == len(point.bucket_counts) - 1
    assert point.start_time_unix_nano == round(VIEW.started_at * 1e9)


def _assert_spans(spans: list) -> None:
    whole = {attributes(one.attributes)["everstep.incident"]: one for one in spans if not one.parent_span_id}
    assert set(whole) == set(VIEW.incidents)
    recovered = next(one for one in VIEW.incidents.values() if one.outcome == "recovered")
    span = whole[recovered.id]
    phases = {one.name: one for one in spans if one.parent_span_id == span.span_id}
    assert {"detect", "decide", "stop", "start", "initialise", "first step"} >= set(phases) >= {"detect", "stop"}
    assert all(one.trace_id == span.trace_id for one in phases.values())
    assert span.end_time_unix_nano == round(recovered.recovered_at * 1e9)
    assert span.start_time_unix_nano == round(recovered.fault_at * 1e9)
    assert all(one.end_time_unix_nano >= one.start_time_unix_nano for one in spans)
    assert len({one.span_id for one in spans}) == len(spans)


@pytest.mark.parametrize("answer", ["400", "redirects"])
def test_a_receiver_that_refuses_costs_a_count(export, answer):
    with Receiver(answer) as receiver:
        counts = export(receiver.url)
    assert "/elsewhere" not in receiver.paths
    for name in ("otlp-metrics", "otlp-traces", "otlp-logs"):
        assert counts[name]["sent"] == 0
        assert counts[name]["failed"] > 0


@pytest.mark.parametrize("answer", ["hangs", "gone", "endless"])
def test_a_receiver_that_hangs_or_is_gone_ends_with_the_run(export, answer):
    with Receiver(answer) as receiver:
        began = time.monotonic()
        counts = export(receiver.url if answer != "gone" else "http://127.0.0.1:9", OTEL_EXPORTER_OTLP_TIMEOUT="0.3")
    assert sum(count["failed"] + count["sent"] + count["dropped"] for count in counts.values()) > 0
    assert time.monotonic() - began < 20.0, "the run's end is not waited for longer than LINGER_S"
    if answer != "endless":
        assert all(count["sent"] == 0 for count in counts.values())


def test_what_waits_has_a_bound(monkeypatch):
    monkeypatch.setattr(sending, "MAX_WAITING", 3)
    lane = sending.Lane("traces", lambda: None)
    lane.put([1, 2, 3, 4, 5])
    assert (lane._waiting, lane.counts["dropped"]) == ([3, 4, 5], 2)


def until(condition):
    deadline = time.monotonic() + 60.0
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_receiver_that_sends_a_byte_now_and_then_holds_up_one_batch_and_no_other(monkeypatch):
    monkeypatch.setattr(sending, "HUNG_S", 0.2)
    go, sent = threading.Event(), []

    class Exporter:
        def export(self, items):
            if items == ["first"]:
                go.wait(60.0)
            sent.append(items)
            return type("Result", (), {"name": "SUCCESS"})

    monkeypatch.setitem(sending._EXPORTERS, "traces", Exporter)
    lane = sending.Lane("traces", lambda: None)
    lane.send(["first"])
    assert lane.is_busy
    until(lambda: not lane.is_busy)
    assert lane.counts == {"sent": 0, "failed": 1, "dropped": 0}
    lane.put(["second"])
    lane.flush()
    until(lambda: lane.is_idle)
    assert lane.counts == {"sent": 1, "failed": 1, "dropped": 0}
    go.set()
    until(lambda: len(sent) == 2)
    assert lane.is_idle
    assert lane.counts == {"sent": 1, "failed": 1, "dropped": 0}, "what was given up is not counted twice"


def test_batches_that_hang_are_few_and_what_waits_at_the_end_is_counted(monkeypatch):
    monkeypatch.setattr(sending, "HUNG_S", 0.0)
    go = threading.Event()
    monkeypatch.setitem(sending._EXPORTERS, "traces", lambda: go.wait(60.0))
    lane = sending.Lane("traces", lambda: None)
    try:
        for k in range(9):
            lane.put([k])
            lane.flush()
            time.sleep(0.005)
        assert len([t for t in threading.enumerate() if t.name == "otlp-traces"]) == sending.MAX_HUNG
        lane.give_up()
        assert lane.counts == {"sent": 0, "failed": sending.MAX_HUNG, "dropped": 9 - sending.MAX_HUNG}
    finally:
        go.set()


URL = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://h:4318"}


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, ()),
        ({"OTEL_SERVICE_NAME": "x"}, ()),
        (URL, ("metrics", "traces", "logs")),
        (URL | {"OTEL_SDK_DISABLED": "true"}, ()),
        (URL | {"OTEL_TRACES_EXPORTER": "none", "OTEL_LOGS_EXPORTER": "console,otlp"}, ("metrics", "logs")),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://h:4318/v1/traces"}, ("traces",)),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": " "}, ()),
    ],
)
def test_only_what_has_an_endpoint_is_exported(environ, expected):
    assert signals(environ) == expected


def test_what_is_not_supported_is_said():
    assert why_not(URL) == why_not(URL | {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}) == ""
    assert "OTEL_EXPORTER_OTLP_PROTOCOL=grpc" in why_not(URL | {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"})
    assert every_s({"OTEL_METRIC_EXPORT_INTERVAL": "5000"}) == 5.0
    assert every_s({"OTEL_METRIC_EXPORT_INTERVAL": "often"}) == every_s({}) == EVERY_S
