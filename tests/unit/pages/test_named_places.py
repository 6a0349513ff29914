"""What docstrings, comments and pages name of this repository is there: modules, files, decisions."""

import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SOURCE = ROOT / "src/everstep"
ROOMS = "|".join(sorted(path.parent.name for path in SOURCE.glob("*/__init__.py")))
DOTTED = re.compile(rf"(?<![\w./-])(?:everstep\.)?((?:{ROOMS})(?:\.[a-z_]+)+)(?![\w(\[])")
FILE = re.compile(rf"(?<![\w./-])((?:{ROOMS})/[a-z_/]+\.py)\b")
OTHER_FILE = re.compile(r"`((?:tests|bench|examples)/[\w/]+\.py)\b")
DECISION = re.compile(r"(?:ADR |adr/)(\d{4})")
FILES_OF_A_RUN = ("json", "jsonl", "log", "torn", "crash")
"""`controller.log` is no module."""


def comments_of(text: str) -> Iterator[str]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT or token.string.startswith('"""'):
            yield token.string


@cache
def is_there(dotted: str) -> bool:
    """A package, a module, or a name that stands in it."""
    here, rest = SOURCE, dotted.split(".")
    while rest and (here / rest[0]).is_dir():
        here = here / rest.pop(0)
    if not rest:
        return True
    if (here / f"{rest[0]}.py").exists():
        here, rest = here / f"{rest[0]}.py", rest[1:]
    else:
        here = here / "__init__.py"
    text = here.read_text()
    return all(re.search(rf"\b{name}\b", text) for name in rest)


def missing_in(text: str) -> list[str]:
    dotted = [name for name in DOTTED.findall(text) if name.split(".")[1] not in FILES_OF_A_RUN]
    return [
        *(name for name in dotted if not is_there(name)),
        *(name for name in FILE.findall(text) if not (SOURCE / name).exists()),
        *(name for name in OTHER_FILE.findall(text) if not (ROOT / name).exists()),
        *(number for number in DECISION.findall(text) if not any((ROOT / "docs/adr").glob(f"{number}-*.md"))),
    ]


def missing_in_comments(text: str) -> list[str]:
    """Reads a file by tokens, which takes long, only where the file as a whole names what is not there."""
    return missing_in("\n".join(comments_of(text))) if missing_in(text) else []


def test_docstrings_and_comments_name_what_is_there() -> None:
    files = sorted(SOURCE.rglob("*.py"))
    assert len(files) > 100
    missing = {path.name: missing_in_comments(path.read_text()) for path in files}
    assert not {name: found for name, found in missing.items() if found}


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda page: page.stem)
def test_pages_name_files_that_are_there(page: Path) -> None:
    found = [*FILE.findall(page.read_text()), *OTHER_FILE.findall(page.read_text())]
    assert [name for name in found if not (SOURCE / name).exists() and not (ROOT / name).exists()] == []


@pytest.mark.parametrize("wrong", ["analyzer.signals.Phase", "agent/base/environment.py", "ADR 0099", "core.no_such"])
def test_what_is_not_there_is_found(wrong: str) -> None:
    assert missing_in(f"see {wrong}, which decides")


def test_what_is_not_there_is_found_in_comments_and_docstrings_alone() -> None:
    assert missing_in_comments("x = 1  # as agent/base/environment.py does\n") == ["agent/base/environment.py"]
    assert missing_in_comments('"""As core.no_such does."""\n') == ["core.no_such"]
    assert missing_in_comments("core.no_such = 1\n") == []
