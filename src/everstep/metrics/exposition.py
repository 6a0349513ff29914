"""Samples as Prometheus text or OpenMetrics, by the official library: escaping and suffixes are its business."""

from collections.abc import Iterator

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector, CollectorRegistry

from everstep.metrics.names import FAMILIES, Family, Kind
from everstep.metrics.samples import Buckets, Sample, Samples


class _Once(Collector):
    def __init__(self, samples: Samples) -> None:
        self._samples = samples

    def collect(self) -> Iterator[Metric]:
        for name, found in self._samples.items():
            yield _metric(FAMILIES[name], found)


def render(samples: Samples, accept: str = "") -> tuple[bytes, str]:
    """(body, content type) in the newest form that the reader accepts."""
    encode, content_type = choose_encoder(accept)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Once(samples))
    return encode(registry), content_type


def _metric(family: Family, found: list[Sample]) -> Metric:
    values = [([sample.labels[label] for label in family.labels], sample) for sample in found]
    if family.kind is Kind.INFO:
        info = InfoMetricFamily(family.name.removesuffix("_info"), family.help)
        for _, sample in values:
            info.add_metric([], sample.labels)
        return info
    if family.kind is Kind.HISTOGRAM:
        histogram = HistogramMetricFamily(family.name, family.help, labels=family.labels)
        for labels, sample in values:
            assert isinstance(sample.value, Buckets)
            bounds = [(_bound(bound), float(number)) for bound, number in sample.value.counts]
            histogram.add_metric(labels, bounds, sample.value.total)
        return histogram
    made = CounterMetricFamily if family.kind is Kind.COUNTER else GaugeMetricFamily
    metric = made(family.name, family.help, labels=family.labels)
    for labels, sample in values:
        assert not isinstance(sample.value, Buckets)
        metric.add_metric(labels, float(sample.value))
    return metric


def _bound(bound: float) -> str:
    return "+Inf" if bound == float("inf") else f"{bound:g}"
