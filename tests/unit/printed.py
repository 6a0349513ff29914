"""What Everstep prints, as its source says it: strings of several words that are no docstrings, with `{}` for values.

Strings that sit side by side and f-strings count as one. The help of a verb is the docstring of its module in `cli`.
"""

import ast
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).parents[2] / "src/everstep"


class Printed(NamedTuple):
    where: str  # "cli/act/run.py:12"
    text: str
    is_error: bool = False  # raised, or logged as a warning or an error


@cache
def sources() -> dict[str, str]:
    """File -> its text, for all tests that read the whole source."""
    return {str(path.relative_to(SOURCE)): path.read_text() for path in sorted(SOURCE.rglob("*.py"))}


class _Read(NamedTuple):
    """What the tests ask of one file. Its nodes are not kept: those of all files are a million objects, which each
    search for garbage and each fork of the tests' process would pay for."""

    printed: tuple[Printed, ...]
    names: frozenset[str]


def nodes(where: str) -> Sequence[ast.AST]:
    """All of a file's, the module first."""
    return tuple(ast.walk(ast.parse(sources()[where])))


def printed() -> list[Printed]:
    return [found for where in sources() for found in _read(where).printed]


def names(where: str) -> frozenset[str]:
    """All names in a file, as the code spells them."""
    return _read(where).names


@cache
def _read(where: str) -> _Read:
    walked = nodes(where)
    return _Read(tuple(_of_file(where, walked)), frozenset(_names_of(walked)))


def _names_of(walked: Sequence[ast.AST]) -> Iterator[str]:
    for node in walked:
        for field in ("id", "attr", "name", "arg"):
            if isinstance(name := getattr(node, field, None), str):
                yield name


def _of_file(where: str, walked: Sequence[ast.AST]) -> Iterator[Printed]:
    tree = walked[0]
    docstrings = set(_docstrings(walked))
    errors = set(_errors(walked))
    assert isinstance(tree, ast.Module)
    if where.startswith("cli/") and (shown := ast.get_docstring(tree)):
        yield Printed(f"{where}:1", shown)
    for node, parts in _texts(walked):
        text = " ".join("".join(parts).split())
        if node not in docstrings and len(text.split()) > 1 and any(each.isalpha() for each in text):
            yield Printed(f"{where}:{node.lineno}", text, node in errors)


def _texts(walked: Sequence[ast.AST]) -> Iterator[tuple[ast.expr, list[str]]]:
    """Each string once; the parts of an f-string belong to it."""
    parts = {part for node in walked if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in walked:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in parts:
            yield node, [node.value]
        elif isinstance(node, ast.JoinedStr):
            yield node, [part.value if isinstance(part, ast.Constant) else "{}" for part in node.values]


def _docstrings(walked: Sequence[ast.AST]) -> Iterator[ast.expr]:
    for node in walked:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield node.value


def _errors(walked: Sequence[ast.AST]) -> Iterator[ast.expr]:
    for node in walked:
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            yield from node.exc.args[:1]
        elif isinstance(node, ast.Call) and _is_logged(node.func):
            yield from node.args[:1]


def _is_logged(func: ast.expr) -> bool:
    levels = ("warning", "error", "exception")
    return isinstance(func, ast.Attribute) and func.attr in levels and ast.unparse(func.value) in ("log", "_log")
