"""The names of all healthy kinds, without importing torch: read from the modules that define them."""

import ast
from pathlib import Path

_MODULES = ("healthy_waits.py", "healthy_computes.py", "healthy_shapes.py")
ONCE = ("before-init", "late-rank", "after-init", "last-barrier", "at-exit")
"""Kinds that are irregular once in the life of a program."""

STATE_ONLY = ("announced-pause",)
"""Kinds that use what only a program with State can know."""


def kinds_listed() -> list[str]:
    found = []
    for name in _MODULES:
        for node in ast.parse(Path(__file__).with_name(name).read_text()).body:
            if isinstance(node, ast.FunctionDef) and any(_marks(one) for one in node.decorator_list):
                found.append(node.name.replace("_", "-"))
    return found


def _marks(decorator: ast.expr) -> bool:
    return isinstance(decorator, ast.Name) and decorator.id in ("act", "shape")
