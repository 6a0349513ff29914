"""Single functions of the installed torch, without importing torch: its files are read, and of each only what the
wanted name needs is run. Importing torch takes a second, and the launcher needs its parser before anything starts.

Where a later torch has written them in a way that this cannot follow, torch is imported.
"""

import ast
import importlib
import importlib.util
from functools import cache
from pathlib import Path
from typing import Any

_TORCH = "torch."
_UNKNOWN = ("torch", "")
"""Value for what is not followed: a relative import, or a name that depends on a condition."""


def part(module: str, name: str) -> Any:  # noqa: ANN401 - whatever that name is there
    """`name` of torch's `module`. Raises ImportError where there is no torch, or not that name in it."""
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.origin:
        raise ImportError("No module named 'torch'")
    try:
        return _part(Path(spec.origin).parent, module, name)
    except Exception:
        try:
            return getattr(importlib.import_module(module), name)
        except AttributeError as error:
            raise ImportError(f"cannot import name {name!r} from {module!r}") from error
        except Exception as error:  # a broken build raises anything
            raise ImportError(f"{type(error).__name__}: {error}") from error


@cache
def _part(folder: Path, module: str, name: str) -> Any:  # noqa: ANN401
    """Only definitions and assignments that `name` leads to are run. Raises whatever goes wrong."""
    defined, imported = _names(folder, module)
    scope: dict[str, Any] = {"__name__": module}
    _define(name, defined, imported, scope, folder)
    return scope[name]


@cache
def _names(folder: Path, module: str) -> tuple[dict[str, ast.stmt], dict[str, tuple[str, str]]]:
    """At the top level of a file: statements that define a name, and (module, name) that a name is imported from."""
    path = folder.joinpath(*module.removeprefix(_TORCH).split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    defined: dict[str, ast.stmt] = {}
    imported: dict[str, tuple[str, str]] = {}
    for statement in ast.parse(path.read_text()).body:
        match statement:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                defined[name] = statement
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                defined[name] = statement
            case ast.Import(names=names):
                imported |= {alias.asname or alias.name: (alias.name, "") for alias in names}
            case ast.ImportFrom(module=source, names=names, level=0):
                imported |= {alias.asname or alias.name: (source or "", alias.name) for alias in names}
            case ast.ImportFrom(names=names):
                imported |= {alias.asname or alias.name: _UNKNOWN for alias in names}
            case ast.If() | ast.Try():
                imported |= dict.fromkeys(_bound(statement), _UNKNOWN)
    return defined, imported


def _bound(statement: ast.stmt) -> set[str]:
    """Names that a statement may define, whichever way it goes."""
    found = set()
    for node in ast.walk(statement):
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.Name(id=name, ctx=ast.Store()):
                found.add(name)
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                found |= {alias.asname or alias.name.split(".")[0] for alias in names}
    return found


def _define(
    name: str,
    defined: dict[str, ast.stmt],
    imported: dict[str, tuple[str, str]],
    scope: dict[str, Any],
    folder: Path,
) -> None:
    if name in scope:
        return
    if name in imported:
        source, what = imported[name]
        if source.startswith(_TORCH) and what:
            scope[name] = _part(folder, source, what)
        elif source == "torch":
            raise ImportError(f"{name} needs torch itself")
        else:
            module = importlib.import_module(source)
            scope[name] = getattr(module, what) if what else module
    elif name in defined:
        scope[name] = None  # it may call itself
        statement = defined[name]
        for node in ast.walk(statement):
            if isinstance(node, ast.Name):
                _define(node.id, defined, imported, scope, folder)
        exec(compile(ast.Module([statement], []), f"<{name} of torch>", "exec"), scope)
