"""Docstrings say first who acts, or what a thing is."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[3] / "src" / "everstep"
OPENINGS = re.compile(r"(Of|As|The same|What|Which)\b")
PENDING = ("agent/processes", "agent/ranks", "engines", "knowledge", "worker/parking")
"""Rooms in which some still open with one of these."""


def test_no_docstring_opens_with_a_relative_clause() -> None:
    found = []
    for path in sorted(ROOT.rglob("*.py")):
        if str(path.relative_to(ROOT)).startswith(PENDING):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = ast.get_docstring(node) or ""
                if OPENINGS.match(text):
                    found.append(f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}: {text.splitlines()[0]}")
    assert not found, "\n".join(found)
