"""The pages about reading say what the code does: keys, buckets, exit codes."""

import re
from pathlib import Path

import msgspec
import pytest

from everstep import errors
from everstep.goodput.buckets import GLOSSARY, Bucket
from everstep.goodput.figures import goodput_of
from everstep.journal.history import history_of
from everstep.journal.load import load_run
from everstep.report import asjson
from everstep.report.incidents.logs import LogPiece
from everstep.report.parts.asked import Asked

ROOT = Path(__file__).parents[3]
JOURNAL = ROOT / "tests" / "golden" / "journal.jsonl"


def documented(verb: str) -> set[str]:
    text = (ROOT / "docs" / "reading-a-run.md").read_text().split("## JSON")[1]
    (paragraph,) = re.findall(rf"\*\*{verb}\*\*(.*?)\n\n", text + "\n\n", re.DOTALL)
    return set(re.findall(r"`([a-z_]+)`", paragraph))


def keys(value: object, depth: int) -> set[str]:
    if isinstance(value, dict) and depth:
        return set(value).union(*(keys(inner, depth - 1) for inner in value.values()))
    if isinstance(value, list) and value and depth:
        return keys(value[0], depth)
    return set()


@pytest.mark.parametrize("verb", ["status", "incident", "explain", "goodput"])
def test_every_json_key_is_documented(verb: str) -> None:
    view = load_run(JOURNAL)
    goodput, asked = goodput_of(history_of(view)), Asked(at=0.0, controller_pid=None)
    values = {
        "status": asjson.status_json(view, goodput, asked),
        "incident": asjson.incident_json(view, view.incidents["i1"]),
        "explain": asjson.explanation_json(view, view.incidents["i1"]),
        "goodput": asjson.goodput_json(view, goodput, asked),
    }
    known = documented(verb) | (documented("incident") if verb == "explain" else set())
    found = set(values[verb])
    for name in ("controller", "nodes", "ranks", "phases", "verdict", "decision", "invalid", "started"):
        if not (verb == "goodput" and name == "ranks"):
            found |= keys(values[verb].get(name), 1)
    assert found <= known, f"not in docs/reading-a-run.md: {sorted(found - known)}"


def test_every_key_of_a_log_is_documented() -> None:
    assert {field.name for field in msgspec.structs.fields(LogPiece)} <= documented("logs")


def test_the_glossary_is_the_one_in_the_docs() -> None:
    text = (ROOT / "docs" / "goodput.md").read_text()
    for bucket in Bucket:
        assert f"| {bucket.replace('_', ' ')} | {GLOSSARY[bucket]} |" in text


def test_every_exit_code_is_documented() -> None:
    text = (ROOT / "docs" / "exit-codes.md").read_text()
    kinds = [
        kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.EverstepError)
    ]
    assert len(kinds) >= 8
    for kind in kinds:  # those of single rooms end with the code of one of these
        assert f"| {kind.exit_code} | `{kind.__name__}`" in text
    assert f"| {errors.EXIT_GAVE_UP} |" in text
    assert f"| {errors.EXIT_NOT_ALLOWED_TO_ACT} |" in text
