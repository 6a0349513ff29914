"""Samples of the families in `names`. What is not known has no sample: absent is "not measured", never 0. Pure."""

import msgspec

from everstep.metrics.names import FAMILIES

Labels = dict[str, str]


class Buckets(msgspec.Struct, frozen=True, kw_only=True):
    """Cumulative buckets of a histogram: (upper bound, how many are not above it), the last one without a bound; and
    the sum."""

    counts: tuple[tuple[float, int], ...]
    total: float


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    labels: Labels
    value: float | Buckets


class Samples:
    """By family, in the order of the table. An unknown name or label is a fault of the caller's."""

    def __init__(self) -> None:
        self._found: dict[str, list[Sample]] = {name: [] for name in FAMILIES}

    def add(self, name: str, value: float | Buckets | None, **labels: str) -> None:
        """Nothing when the value is not known."""
        if tuple(sorted(labels)) != tuple(sorted(FAMILIES[name].labels)):
            raise KeyError(f"{name} has the labels {FAMILIES[name].labels}, not {tuple(labels)}")
        if value is not None:
            self._found[name].append(Sample(labels=labels, value=value))

    def items(self) -> list[tuple[str, list[Sample]]]:
        return [(name, found) for name, found in self._found.items() if found]
