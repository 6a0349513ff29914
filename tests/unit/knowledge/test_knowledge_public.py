"""Excerpts of public logs: each is recognised, by its class, blames whom it should, and healthy ones cause nothing.

All of them have been read by now, so full marks say nothing about new logs; docs/knowledge/accuracy.md has the figures
of the first, blind measurement of each.
"""

from functools import cache
from pathlib import Path

import pytest
from built_in import BASE, ENGINE

from everstep.knowledge.causality.ranking import rank_findings
from everstep.knowledge.findings import Finding
from everstep.knowledge.live import classify
from everstep.knowledge.matcher import Matcher
from everstep.knowledge.signature import Role, Severity

TABLE = Path(__file__).parents[2] / "golden" / "knowledge" / "public.tsv"
NOW = 1_795_000_000.0
OTHER_LABEL = 5
"""Excerpts whose class is a matter of taste, and where ours differs from the one written beside it before measuring."""


def rows() -> list[tuple[frozenset[str], frozenset[str], str]]:
    lines = [line for line in TABLE.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    fields = [line.split("\t", 2) for line in lines]
    return [(frozenset(f[0].split("|")), frozenset(f[1].split("|")), f[2].replace("\\n", "\n")) for f in fields]


ROWS = rows()
FAULTS = [row for row in ROWS if row[0] != {"-"}]
HEALTHY = [row[2] for row in ROWS if row[0] == {"-"}]


@cache
def findings(text: str) -> list[Finding]:
    matcher = Matcher(BASE, now=NOW, engine=ENGINE)
    matcher.feed("log", text.encode() + b"\n")
    return rank_findings(matcher.finish())


def test_the_table_is_there():
    assert len(FAULTS) > 400
    assert len(HEALTHY) > 50


def test_every_excerpt_is_recognised():
    unknown = [text for _, _, text in FAULTS if not any(not f.klass.startswith("unknown_") for f in findings(text))]
    assert unknown == []


def test_the_first_finding_has_the_class_and_the_blame():
    wrong_class, wrong_blame = [], []
    for classes, blames, text in FAULTS:
        first = next(f for f in findings(text) if not f.klass.startswith("unknown_"))
        if first.klass not in classes:
            wrong_class.append((first.code, first.klass, text))
        elif str(first.blame) not in blames:
            wrong_blame.append((first.code, str(first.blame), text))
    assert len(wrong_class) <= OTHER_LABEL, wrong_class
    assert len(wrong_blame) <= 1, wrong_blame


@pytest.mark.parametrize("text", HEALTHY)
def test_nothing_is_done_about_harmless_excerpts(text):
    assert not [f.code for f in findings(text) if f.acts]


@pytest.mark.slow
def test_the_end_of_a_rank_says_the_same_as_the_whole_log():
    for _, _, text in FAULTS:
        first = next(
            (f for f in findings(text) if f.severity is not Severity.INFO and f.role is not Role.RECOVERY), None
        )
        found = classify(text)
        assert (found and found.klass) == (first and first.klass), text
