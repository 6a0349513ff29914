"""docs/security.md promises what tests hold: each that it names is there."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_every_test_that_the_page_names_exists():
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "docs/security.md").read_text()))
    found: set[str] = set()
    for path in (ROOT / "tests").rglob("*.py"):
        found |= set(re.findall(r"^(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE))
    assert len(named) > 20
    assert named - found - {path.stem for path in (ROOT / "tests").rglob("test_*.py")} == set()
