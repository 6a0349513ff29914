"""Samples, incidents and messages in the data model of OpenTelemetry's SDK. Nothing is sent here.

Ids of traces follow from run and incident: a span that is sent again, by any process, is the same span.
"""

import hashlib
import math
from collections.abc import Sequence
from typing import Any

from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.sdk._logs import ReadableLogRecord
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, Status, StatusCode, TraceFlags

from everstep.journal.view import IncidentView, RunView
from everstep.metrics.names import FAMILIES, Family, Kind
from everstep.metrics.samples import Buckets, Sample, Samples
from everstep.notices.messages import Message
from everstep.report.parts.phases import times_of
from everstep.version import __version__

SCOPE = InstrumentationScope("everstep", __version__)
EVENT = "everstep.incident"
_CUMULATIVE = AggregationTemporality.CUMULATIVE


def nanoseconds(at: float) -> int:
    return round(at * 1e9)


def metrics_data(samples: Samples, resource: Resource, since: float, at: float) -> MetricsData:
    """The names are Prometheus' own: a collector that translates leaves them as they are."""
    metrics = [_metric(FAMILIES[name], found, nanoseconds(since), nanoseconds(at)) for name, found in samples.items()]
    scope = ScopeMetrics(scope=SCOPE, metrics=metrics, schema_url="")
    return MetricsData([ResourceMetrics(resource=resource, scope_metrics=[scope], schema_url="")])


def _metric(family: Family, found: Sequence[Sample], since: int, at: int) -> Metric:
    data: Any
    if family.kind is Kind.HISTOGRAM:
        points = [_histogram(one.labels, one.value, since, at) for one in found if isinstance(one.value, Buckets)]
        data = Histogram(data_points=points, aggregation_temporality=_CUMULATIVE)
    else:
        numbers = [
            NumberDataPoint(attributes=one.labels, start_time_unix_nano=since, time_unix_nano=at, value=one.value)
            for one in found
            if not isinstance(one.value, Buckets)
        ]
        is_sum = family.kind is Kind.COUNTER
        data = Sum(numbers, aggregation_temporality=_CUMULATIVE, is_monotonic=True) if is_sum else Gauge(numbers)
    unit = "s" if family.name.removesuffix("_total").endswith("_seconds") else "1"
    return Metric(name=family.name, description=family.help, unit=unit, data=data)


def _histogram(labels: dict[str, str], buckets: Buckets, since: int, at: int) -> HistogramDataPoint:
    """Prometheus counts what is not above a bound; here each bucket has its own."""
    totals = [number for _, number in buckets.counts]
    own = [after - before for before, after in zip([0, *totals], totals, strict=False)]
    bounds = [bound for bound, _ in buckets.counts if math.isfinite(bound)]
    return HistogramDataPoint(
        attributes=labels,
        start_time_unix_nano=since,
        time_unix_nano=at,
        count=totals[-1] if totals else 0,
        sum=buckets.total,
        bucket_counts=own,
        explicit_bounds=bounds,
        min=None,
        max=None,
    )


def spans_of(view: RunView, incident: IncidentView, resource: Resource) -> list[ReadableSpan]:
    """Convert an incident that is over into spans: one for the whole, and a child for each phase with both ends
    known."""
    times, key = times_of(view, incident), f"everstep/{view.run}/{incident.id}"
    whole = _context(key, "")
    attributes = attributes_of(view, incident)

    def span(name: str, own: SpanContext, begin: float, end: float, *, is_bad: bool = False) -> ReadableSpan:
        return ReadableSpan(
            name,
            context=own,
            parent=None if own is whole else whole,
            resource=resource,
            attributes=attributes,
            status=Status(StatusCode.ERROR, incident.outcome) if is_bad else Status(),
            start_time=nanoseconds(begin),
            end_time=nanoseconds(max(begin, end)),
            instrumentation_scope=SCOPE,
        )

    begin = times.fault if times.fault is not None else times.detected
    end = incident.recovered_at or incident.closed_at or begin
    is_bad = incident.outcome in ("gave-up", "failed")
    below = [
        span(phase.name, _context(key, phase.name), phase.begin, phase.end)
        for phase in times.phases
        if phase.begin is not None and phase.end is not None
    ]
    return [span(f"incident {incident.id}", whole, begin, end, is_bad=is_bad), *below]


def _context(key: str, name: str) -> SpanContext:
    """`key`: of the incident; `name`: of one of its spans."""
    trace, own = (hashlib.sha256(text.encode()).digest() for text in (key, f"{key}/{name}"))
    flags = TraceFlags(TraceFlags.SAMPLED)
    return SpanContext(int.from_bytes(trace[:16]), int.from_bytes(own[:8]), is_remote=False, trace_flags=flags)


def attributes_of(view: RunView, incident: IncidentView) -> dict[str, str | int | bool]:
    """Codes, names and numbers only: what a rank printed is in no attribute."""
    verdict = incident.verdict
    known: dict[str, str | int | bool | None] = {
        "everstep.run": view.run,
        "everstep.incident": incident.id,
        "everstep.code": None if verdict is None else verdict.code,
        "everstep.node": None if verdict is None else verdict.node,
        "everstep.outcome": incident.outcome,
        "everstep.lost_steps": incident.lost_steps,
        "everstep.drill": incident.drill,
    }
    return {name: value for name, value in known.items() if value is not None}


def event_of(message: Message, text: str, resource: Resource) -> ReadableLogRecord:
    """`text`: of the message, masked."""
    severity = SeverityNumber.ERROR if message.needs_you else SeverityNumber.WARN
    record = LogRecord(
        timestamp=nanoseconds(message.at),
        observed_timestamp=nanoseconds(message.at),
        severity_number=severity,
        severity_text=severity.name,
        body=text,
        event_name=EVENT,
        attributes={
            "everstep.run": message.run,
            "everstep.incident": message.key,
            "everstep.state": message.state,
            "everstep.code": message.code,
            "everstep.node": message.node,
            "everstep.drill": message.is_drill,
        },
    )
    return ReadableLogRecord(log_record=record, resource=resource, instrumentation_scope=SCOPE)
