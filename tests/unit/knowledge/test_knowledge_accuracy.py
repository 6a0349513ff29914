"""Recall and precision on lines from elsewhere: a table of samples, if EVERSTEP_FACTS says where its directory is.

The table is split by a hash of the row's id, as docs/knowledge/accuracy.md describes: rows that were looked at while
patterns were written, and rows that were only ever measured.
"""

import csv
import hashlib
import os
from pathlib import Path

import pytest

from everstep.knowledge.causality.ranking import rank_findings
from everstep.knowledge.engine import Engine
from everstep.knowledge.loading import load_base
from everstep.knowledge.matcher import Matcher

FACTS = os.environ.get("EVERSTEP_FACTS", "")
MEASURABLE = frozenset({"real", "real_rw", "local", "fixture", "fmt"})
SEEN_FIRST = 59  # rows at the top of the table that were read before it was split
NOW = 1_795_000_000.0

pytestmark = pytest.mark.skipif(not FACTS, reason="EVERSTEP_FACTS is not set")


def rows(part: str) -> list[dict[str, str]]:
    with (Path(FACTS) / "fault_kb.tsv").open(encoding="utf-8") as file:
        table = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    return [row for number, row in enumerate(table) if row["origin"] in MEASURABLE and part_of(number, row) == part]


def part_of(number: int, row: dict[str, str]) -> str:
    digest = hashlib.sha256(row["id"].encode()).digest()
    if number < SEEN_FIRST or digest[0] % 2 == 0:
        return "tuned"
    return "opened" if digest[1] % 2 == 0 else "held-out"


@pytest.mark.parametrize(
    ("part", "recall", "precision"), [("tuned", 0.99, 0.99), ("opened", 0.99, 0.97), ("held-out", 0.94, 0.93)]
)
def test_recall_and_class(part, recall, precision):
    base = load_base()
    engine = Engine(base.signatures)
    recognised = right = 0
    chosen = rows(part)
    for row in chosen:
        matcher = Matcher(base, now=NOW, engine=engine)
        matcher.feed("sample", row["sample_line"].encode() + b"\n")
        known = [f for f in rank_findings(matcher.finish()) if not f.family]
        recognised += bool(known)
        right += bool(known) and known[0].klass == row["klass"]
    assert recognised / len(chosen) >= recall
    assert right / recognised >= precision
