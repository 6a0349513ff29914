"""Reads a program's code without running it: does everything that it imports compile, and is everything there.

From the program's file it follows imports to all files of the user's own. Each must compile; what a file imports at its
top, unconditionally, must be found. What stands in a function or behind a condition may be for another machine, so it
need not be there, but if it is the user's own it must compile. Called in a process of its own.
"""

import ast
import importlib.machinery
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from everstep.worker.process.modules import is_library_file, library_roots

MAX_FILES = 5000


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """`why`: the first thing that is wrong, with file and line; empty if nothing is."""

    num_files: int
    why: str = ""


class _Import(msgspec.Struct, frozen=True, kw_only=True):
    """One module that is asked for. `is_certain`: it is imported whenever the file is."""

    name: str
    line: int
    is_certain: bool


class _WrongError(Exception):
    pass


def read_program(program: str, path: Sequence[str], shown_from: str = "") -> Reading:
    """`program`: its file. `path`: where its imports are looked up, as in the rank. `shown_from`: files are named as
    seen from this folder."""
    reader = _Reader(list(path), shown_from)
    try:
        reader.read(program, "__main__", is_package=False)
    except _WrongError as wrong:
        return Reading(num_files=reader.num_files, why=str(wrong))
    return Reading(num_files=reader.num_files)


def read_files(program: str, path: Sequence[str]) -> list[str]:
    """The program's file and all files of the user's own that its imports lead to. One that does not compile leads
    nowhere."""
    reader = _Reader(list(path), "", is_strict=False)
    reader.read(program, "__main__", is_package=False)
    return sorted(reader.seen)


def file_of_module(name: str, path: Sequence[str]) -> str:
    """The file that `python -m name` runs; empty if there is none."""
    finder = _Finder(list(path))
    spec = finder.find(name)
    if spec is not None and spec.submodule_search_locations is not None:
        spec = finder.find(f"{name}.__main__")
    return (spec.origin or "") if spec is not None else ""


class _Finder:
    """Finds modules as the interpreter would, without running the packages that they are in."""

    def __init__(self, path: list[str]) -> None:
        self._path = path
        self._found: dict[str, importlib.machinery.ModuleSpec | None] = {}

    def find(self, name: str) -> importlib.machinery.ModuleSpec | None:
        if name not in self._found:
            self._found[name] = self._look(name)
        return self._found[name]

    def _look(self, name: str) -> importlib.machinery.ModuleSpec | None:
        package, _, _ = name.rpartition(".")
        path: list[str] | None = self._path
        if package:
            parent = self.find(package)
            if parent is None or parent.submodule_search_locations is None:
                return None
            path = list(parent.submodule_search_locations)
        return importlib.machinery.PathFinder.find_spec(name, path)


class _Reader:
    def __init__(self, path: list[str], shown_from: str, *, is_strict: bool = True) -> None:
        self._is_strict = is_strict
        self._finder = _Finder(path)
        self._shown_from = shown_from
        self._roots = library_roots()
        self._seen: set[str] = set()

    @property
    def seen(self) -> frozenset[str]:
        return frozenset(self._seen)

    @property
    def num_files(self) -> int:
        return len(self._seen)

    def read(self, file: str, name: str, *, is_package: bool) -> None:
        """Raises _WrongError."""
        waiting = [(file, name, is_package)]
        while waiting and len(self._seen) < MAX_FILES:
            file, name, is_package = waiting.pop()
            if file in self._seen:
                continue
            self._seen.add(file)
            package = name if is_package else name.rpartition(".")[0]
            try:
                for wanted in _imports_of(self._parse(file), package):
                    waiting += self._own_files(wanted, file)
            except _WrongError:
                if self._is_strict:
                    raise

    def _parse(self, file: str) -> ast.Module:
        try:
            tree = ast.parse(Path(file).read_bytes(), file)
            compile(tree, file, "exec", dont_inherit=True)
        except OSError as error:
            raise _WrongError(f"{self._shown(file)}: {error.strerror}") from error
        except (SyntaxError, ValueError) as error:
            line = getattr(error, "lineno", None) or 1
            what = error.msg if isinstance(error, SyntaxError) else str(error)
            raise _WrongError(f"{self._shown(file)}:{line}: {type(error).__name__}: {what}") from error
        return tree

    def _own_files(self, wanted: _Import, file: str) -> Iterator[tuple[str, str, bool]]:
        """Files of the user's own that this import runs: the module's, and those of the packages around it."""
        parts = wanted.name.split(".")
        if parts[0] == "everstep":
            return
        for length in range(1, len(parts) + 1):
            name = ".".join(parts[:length])
            if name in sys.builtin_module_names or (length == 1 and name in sys.stdlib_module_names):
                return
            spec = self._finder.find(name)
            if spec is None:
                if (
                    self._is_strict
                    and wanted.is_certain
                    and (length == 1 or self._is_own(self._finder.find(".".join(parts[: length - 1]))))
                ):
                    raise _WrongError(f"{self._shown(file)}:{wanted.line}: there is no module {name!r}")
                return
            if spec.origin is not None and spec.origin.endswith(".py") and self._is_own(spec):
                yield spec.origin, name, spec.submodule_search_locations is not None

    def _is_own(self, spec: importlib.machinery.ModuleSpec | None) -> bool:
        """Whether the module is the program's own. Libraries make modules as they please; looking for files does not
        show what they lack."""
        if spec is None:
            return False
        folders = [f"{folder}{os.sep}" for folder in spec.submodule_search_locations or ()]
        places = [spec.origin] if spec.origin else folders
        return bool(places) and not any(is_library_file(place, self._roots) for place in places)

    def _shown(self, file: str) -> str:
        inside = self._shown_from and file.startswith(self._shown_from.rstrip(os.sep) + os.sep)
        return os.path.relpath(file, self._shown_from) if inside else file


def _imports_of(tree: ast.Module, package: str) -> Iterator[_Import]:
    certain = {id(node) for node in tree.body}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield _Import(name=alias.name, line=node.lineno, is_certain=id(node) in certain)
        elif isinstance(node, ast.ImportFrom):
            base = _base_of(node, package)
            if base:
                yield _Import(name=base, line=node.lineno, is_certain=id(node) in certain)
                for alias in node.names:  # a submodule, or only a name: undecidable without running it
                    if alias.name != "*":
                        yield _Import(name=f"{base}.{alias.name}", line=node.lineno, is_certain=False)


def _base_of(node: ast.ImportFrom, package: str) -> str:
    if not node.level:
        return node.module or ""
    parts = package.split(".") if package else []
    kept = parts[: len(parts) - (node.level - 1)] if node.level - 1 <= len(parts) else []
    return ".".join([*kept, *([node.module] if node.module else [])]) if kept else ""
