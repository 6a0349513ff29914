"""The policy by concern: each key in exactly one, under its heading in the code, explained on the page."""

import re
from pathlib import Path

import msgspec

from everstep.core.state.policy import GROUPS, Policy, keys_of
from everstep.report.parts.policy import render_policy

ROOT = Path(__file__).parents[3]
KEYS = [field.name for field in msgspec.structs.fields(Policy) if field.name != "name"]


def test_the_page_is_in_sync() -> None:
    expected = "run `python -m everstep.report.parts.policy > docs/policy.md`"
    assert (ROOT / "docs/policy.md").read_text() == render_policy(), expected


def test_each_key_has_one_concern() -> None:
    assert [key for concern in GROUPS for key in keys_of(concern)] == KEYS


def test_the_code_has_the_same_headings() -> None:
    text = (ROOT / "src/everstep/core/state/policy.py").read_text()
    found = re.findall(r"^    # (.+)\n\n    (\w+):", text, re.MULTILINE)
    assert dict(found) == GROUPS


def test_each_key_is_explained_on_the_page() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \|.*\| (.*) \|$", render_policy(), re.MULTILINE))
    assert list(rows) == KEYS
    assert not [key for key, meaning in rows.items() if len(meaning.split()) < 4]
