"""Names of what a module marks with a decorator, read from its text: the driver of a benchmark needs no torch."""

import ast
from collections.abc import Collection
from pathlib import Path


def marked(module: str, decorators: Collection[str]) -> list[str]:
    """Names of functions with one of these decorators, in their order, as they are called on the command line."""
    nodes = ast.parse(Path(__file__).with_name(module).read_text()).body
    return [
        node.name.replace("_", "-")
        for node in nodes
        if isinstance(node, ast.FunctionDef)
        and any(isinstance(one, ast.Name) and one.id in decorators for one in node.decorator_list)
    ]
