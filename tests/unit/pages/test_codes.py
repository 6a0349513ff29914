"""Verdict codes: their pages are complete, and docs/codes.md is what the table says."""

import re
from pathlib import Path

from everstep.core.faults import drills
from everstep.knowledge.loading import load_base
from everstep.report.parts.codes import CODES, render_all

ROOT = Path(__file__).parents[3]


def test_the_page_is_in_sync() -> None:
    expected = "run `python -m everstep.report.parts.codes > docs/codes.md`"
    assert (ROOT / "docs/codes.md").read_text() == render_all(), expected


def test_every_code_used_in_the_source_has_a_page() -> None:
    text = "\n".join(path.read_text() for path in (ROOT / "src/everstep").rglob("*.py"))
    used = set(re.findall(r"\bES-[A-Z]+\d\d\b", text))
    assert len(used) > 50, "the sources were not found"
    signatures = {signature.code for signature in load_base().signatures}
    assert used <= {*CODES, *signatures}


def test_drills_on_the_pages_exist() -> None:
    known = set(drills.KINDS)
    named = {code.drill.split()[2] for code in CODES.values() if code.drill.startswith("everstep drill")}
    assert named <= known
