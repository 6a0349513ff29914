"""One measured thing, and the report of a node: the values that checks yield, files hold and judges read.

Pure data. `noted` is the verdict of what was measured and has nothing to be compared with: unknown is never healthy.
"""

import enum
from typing import TypeAlias

import msgspec

REPORT_VERSION = 1
"""Grows only when an old reader would misread a new report."""

Value: TypeAlias = bool | int | float | str | None


class Judgement(enum.StrEnum):
    OK = "ok"
    WARN = "warn"
    BAD = "bad"
    NOTED = "noted"  # measured; nothing to compare it with
    UNSUPPORTED = "unsupported"  # could not be measured; `why` says why


class Better(enum.StrEnum):
    """The direction in which a value is better than another, for baselines and for other nodes."""

    HIGHER = "higher"
    LOWER = "lower"
    SAME = "same"
    ANY = "any"  # differs from node to node by nature


class Result(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    name: str  # dotted, stable: "disk./tmp.fsync_p50_s"
    value: Value
    unit: str = ""  # base unit, or empty for names and counts
    verdict: Judgement = Judgement.NOTED
    why: str = ""  # one sentence: reason of the verdict
    how: str = ""  # how it was measured
    baseline: Value = None
    baseline_from: str = ""  # "limit", "baseline FILE", "median of 3 other nodes", ...
    better: Better = Better.ANY
    tolerance: float = 0.2  # share of the baseline that is no news
    device: str = ""  # "eth1", "gpu 3", "cpu 0"

    @property
    def category(self) -> str:
        return self.name.partition(".")[0]


class Report(msgspec.Struct, frozen=True, kw_only=True):
    version: int = REPORT_VERSION
    everstep_version: str
    node: str
    kind: str  # what makes two nodes comparable
    level: str  # "quick", "full", "burn-in"
    at: float
    took_s: float
    results: tuple[Result, ...]
    interrupted: bool = False  # ended by Ctrl-C: what had been measured by then

    def count(self, verdict: Judgement) -> int:
        return sum(result.verdict is verdict for result in self.results)


def measured(
    name: str,
    value: Value,
    unit: str = "",
    *,
    how: str,
    better: Better = Better.ANY,
    tolerance: float = 0.2,
    device: str = "",
) -> Result:
    """A value as it was found, not yet judged."""
    return Result(name=name, value=value, unit=unit, how=how, better=better, tolerance=tolerance, device=device)


def unsupported(name: str, why: str, unit: str = "", *, how: str = "", device: str = "") -> Result:
    return Result(name=name, value=None, unit=unit, verdict=Judgement.UNSUPPORTED, why=why, how=how, device=device)


class Doing(msgspec.Struct, frozen=True, kw_only=True):
    """Said by a check before something that may hang, so that a killed check has a name for it."""

    what: str


Yielded: TypeAlias = Result | Doing
