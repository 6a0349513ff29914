"""What is looked for in whole blocks of text: less than the patterns, and never less than they match."""

from pathlib import Path

import pytest
import re2

from everstep.knowledge.loading import load_base
from everstep.knowledge.screening.screen import options, screen_of, without_anchors

GOLDEN = Path(__file__).parents[2] / "golden" / "knowledge"
LINES = sorted(
    {
        line.split("\t")[-1].replace("\\n", "\n")
        for name in ("lines.tsv", "public.tsv", "reports.tsv")
        for line in (GOLDEN / name).read_text(encoding="utf-8").splitlines()
        if not line.startswith("#")
    }
)


def test_a_screen_stops_wherever_its_pattern_matches():
    texts = "\n".join(LINES).encode().split(b"\n")
    changed = 0
    for pattern in {p for s in load_base().signatures for p in s.patterns}:
        bare, is_anchored = without_anchors(pattern)
        screen = screen_of(bare)
        if is_anchored or screen == bare:
            continue
        changed += 1
        matched, found = re2.compile(pattern.encode(), options()), re2.compile(screen.encode(), options())
        lines = [line for line in texts if matched.search(line)]
        assert [line for line in lines if found.search(line) is None] == [], pattern
    assert changed > 50


@pytest.mark.parametrize(
    ("pattern", "screen"),
    [
        ("loss scale.*(?:minimum|too small)", "(?:minimum|too small)"),  # healthy jobs print the first half all day
        ("(?i:nan|inf).{0,40}(?:loss|value) detected in", "(?:loss|value) detected in"),
        ("tape robot.{0,40}dropped", "tape robot.*dropped"),
        ("checkpoint.*(?:failed|error)", "checkpoint.*(?:failed|error)"),  # the second half is no rarer
        ("checkpoint.*corrupt|tape", "checkpoint.*corrupt|tape"),  # an alternative has no gap
        ("(?:checkpoint.*corrupt)", "(?:checkpoint.*corrupt)"),
        (r"loss\[a.*b\] corrupt", r"b\] corrupt"),
        ("[(|]loss.*corrupt", "corrupt"),
        ("(?i)loss.*corrupt", "(?i)loss.*corrupt"),  # what is behind the gap would lose its flag
    ],
)
def test_what_stands_behind_everyday_words_is_looked_for_alone(pattern: str, screen: str):
    assert screen_of(pattern) == screen
