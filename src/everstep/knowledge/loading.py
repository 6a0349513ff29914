"""Reads signature files (TOML) and says precisely what is wrong with them: file, line, key, reason.

A broken signature is refused and the rest is used: our own monitoring must not fail because a site mistyped a file.
Built-in files come first; a site's files may add codes, and replace one of ours only with `override = true`.
Called by the matcher's owners and by `everstep kb`.
"""

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

from everstep.knowledge import engine
from everstep.knowledge.signature import Action, Role, Severity, Signature
from everstep.linux.regular import read_regular
from everstep.model.verdict import Blame

MAX_BYTES = 4 << 20
BUILT_IN = Path(__file__).parent / "data"

_STRINGS = ("code", "class", "component", "title", "meaning", "confirm")
_LISTS = ("patterns", "negatives", "recovers", "after")
_ENUMS: dict[str, type[StrEnum]] = {"role": Role, "blame": Blame, "severity": Severity, "action": Action}
_OPTIONAL = (
    "specificity",
    "context",
    "family",
    "screened",
    "any_level",
    "probe",
    "do",
    "override",
    "negatives",
    "recovers",
    "after",
)
_KEYS = frozenset((*_STRINGS, *_LISTS, *_ENUMS, *_OPTIONAL))
_NOT_IN_DEFAULTS = frozenset({"code", "patterns", "override"})
_CODE = re.compile(r"[A-Z]{2,8}-[A-Z0-9]{2,16}")
_HEADER = re.compile(r"\s*\[\[\s*(signature|family)\s*\]\]")
_FRAGMENT = re.compile(r"\$\{(\w+)\}")

_E = TypeVar("_E", bound=StrEnum)


@dataclass(frozen=True, slots=True)
class Problem:
    """Something refused. `line` is 0 when the whole file is meant."""

    file: str
    line: int
    key: str
    why: str

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        return f"{place}: {self.key}: {self.why}" if self.key else f"{place}: {self.why}"


@dataclass(frozen=True, slots=True)
class Base:
    """Everything that is known, and what was refused."""

    signatures: tuple[Signature, ...]
    problems: tuple[Problem, ...] = ()

    def find(self, code: str) -> Signature | None:
        wanted = code.upper()
        return next((s for s in self.signatures if s.code == wanted), None)


class _RefusedError(Exception):
    """A key of one signature is wrong."""

    def __init__(self, key: str, why: str) -> None:
        super().__init__(why)
        self.key = key


def load_base(site_dirs: Iterable[Path] = (), *, check_built_in: bool = False) -> Base:
    """The built-in signatures and those of the given directories. Never raises for what stands in a file of those.

    The patterns of the built-in ones are not tried one by one, which is half of the time that this takes: a test of
    ours does that, with `check_built_in`."""
    found: dict[str, Signature] = {}
    problems: list[Problem] = []
    for path in sorted(BUILT_IN.glob("*.toml")):
        _add_file(path, path.name, found, problems, try_patterns=check_built_in)
    for directory in site_dirs:
        if not directory.is_dir():
            problems.append(Problem(str(directory), 0, "", "no such directory; none of its signatures are used"))
            continue
        for path in sorted(directory.glob("*.toml")):
            _add_file(path, str(path), found, problems)
    return Base(tuple(found.values()), tuple(problems))


def _add_file(
    path: Path, name: str, found: dict[str, Signature], problems: list[Problem], *, try_patterns: bool = True
) -> None:
    try:
        text = read_regular(path, MAX_BYTES).decode().replace("\r\n", "\n")
        document = tomllib.loads(text)
    except (OSError, UnicodeDecodeError, RecursionError) as error:
        problems.append(Problem(name, 0, "", f"cannot be read: {error}"))
        return
    except tomllib.TOMLDecodeError as error:
        line = re.search(r"at line (\d+)", str(error))
        problems.append(Problem(name, int(line[1]) if line else 0, "", f"not TOML: {error}"))
        return
    _File(name, text, document, found, problems, try_patterns=try_patterns).read()


class _File:
    """One file while it is read."""

    def __init__(
        self,
        name: str,
        text: str,
        document: dict[str, Any],
        found: dict[str, Signature],
        problems: list[Problem],
        *,
        try_patterns: bool,
    ) -> None:
        self._name = name
        self._lines = text.split("\n")
        self._document = document
        self._found = found
        self._problems = problems
        self._try_patterns = try_patterns
        self._fragments: dict[str, str] = {}
        self._defaults: dict[str, Any] = {}

    def read(self) -> None:
        for key in self._document.keys() - {"fragments", "defaults", "signature", "family"}:
            self._refuse(self._line_of(key, 0), key, "not a table of this format")
        self._fragments = self._table("fragments")
        self._defaults = self._table("defaults")
        for key in list(self._defaults):
            if key not in _KEYS or key in _NOT_IN_DEFAULTS:
                self._refuse(self._line_of(key, 0), key, "cannot stand in [defaults]")
                del self._defaults[key]
        headers: dict[str, list[int]] = {"signature": [], "family": []}
        for number, line in enumerate(self._lines):
            if header := _HEADER.match(line):
                headers[header[1]].append(number)
        for kind in ("signature", "family"):
            entries = self._document.get(kind, [])
            if not isinstance(entries, list):
                self._refuse(self._line_of(kind, 0), kind, f"write [[{kind}]] with two brackets")
                continue
            for index, entry in enumerate(entries):
                start = headers[kind][index] if index < len(headers[kind]) else 0
                if kind == "signature":
                    self._add(entry, start)
                else:
                    self._add_family(entry, start)

    def _table(self, name: str) -> dict[str, Any]:
        table = self._document.get(name, {})
        if isinstance(table, dict):
            return dict(table)
        self._refuse(self._line_of(name, 0), name, "expected a table")
        return {}

    def _add_family(self, entry: dict[str, Any], start: int) -> None:
        rows = entry.get("rows")
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            self._refuse(self._line_of("rows", start), "rows", "expected a list of tables, one per code")
            return
        line = self._line_of("rows", start)
        for row in rows:
            values = {str(key): str(value) for key, value in row.items()}
            filled = {key: _fill(value, values) for key, value in entry.items() if key != "rows"}
            line = self._next_row(line)
            self._add(filled, start, at_line=line)

    def _add(self, entry: dict[str, Any], start: int, *, at_line: int | None = None) -> None:
        line = start + 1 if at_line is None else at_line
        merged = {**self._defaults, **entry}
        try:
            signature = self._build(merged, f"{self._name}:{line}")
            known = self._found.get(signature.code)
            if known is not None and not merged.get("override"):
                why = f"{signature.code} is already used in {known.origin}; to replace it say override = true"
                raise _RefusedError("code", why)
        except _RefusedError as refused:
            place = line if at_line is not None else self._line_of(refused.key, start)
            self._refuse(place, refused.key, str(refused))
            return
        self._found[signature.code] = signature

    def _build(self, entry: Mapping[str, Any], origin: str) -> Signature:
        for key in entry:
            if key not in _KEYS:
                raise _RefusedError(key, f"unknown key; there are: {', '.join(sorted(_KEYS))}")
        text = {key: _string(entry, key) for key in _STRINGS}
        if not _CODE.fullmatch(text["code"]):
            raise _RefusedError("code", f"{text['code']!r} is not like ES-G79")
        patterns = tuple(self._pattern(p) for p in _list(entry, "patterns"))
        if not patterns:
            raise _RefusedError("patterns", "at least one pattern is needed")
        specificity = entry.get("specificity", 50)
        if not isinstance(specificity, int) or not 0 <= specificity <= 100:
            raise _RefusedError("specificity", f"{specificity!r} is not a number from 0 to 100")
        context = entry.get("context", "")
        if context not in ("", "error"):
            raise _RefusedError("context", f'{context!r}: only "error" is known')
        severity, action = _enum(entry, "severity", Severity), _enum(entry, "action", Action)
        if severity is Severity.INFO and action.acts:
            raise _RefusedError("action", f"{action} for a line of severity info; nothing is done about those")
        return Signature(
            code=text["code"],
            klass=text["class"],
            component=text["component"],
            title=text["title"],
            meaning=text["meaning"],
            confirm=text["confirm"],
            patterns=patterns,
            negatives=tuple(self._pattern(p, "negatives") for p in _list(entry, "negatives")),
            recovers=tuple(_list(entry, "recovers")),
            after=tuple(_list(entry, "after")),
            role=_enum(entry, "role", Role),
            blame=_enum(entry, "blame", Blame),
            severity=severity,
            action=action,
            specificity=specificity,
            context=context,
            do=str(entry.get("do", "")),
            family=str(entry.get("family", "")),
            screened=_flag(entry, "screened", default=True),
            any_level=_flag(entry, "any_level", default=False),
            probe=_flag(entry, "probe", default=False),
            origin=origin,
        )

    def _pattern(self, pattern: str, key: str = "patterns") -> str:
        def fragment(match: re.Match[str]) -> str:
            value = self._fragments.get(match[1])
            if not isinstance(value, str):
                raise _RefusedError(key, f"{match[0]} is not in [fragments]")
            return value

        expanded = _FRAGMENT.sub(fragment, pattern)
        why = engine.refusal(expanded) if self._try_patterns else ""
        if why:
            raise _RefusedError(key, f"{pattern!r}: {why}")
        return expanded

    def _line_of(self, key: str, start: int) -> int:
        """1-based line of `key` in the table that begins at index `start`; the table's own line if not found."""
        wanted = re.compile(rf'\s*(\[+\s*)?"?{re.escape(key)}"?\s*(=|\])')
        for number in range(start, len(self._lines)):
            if number > start and start and self._lines[number].startswith("[["):
                break
            if wanted.match(self._lines[number]):
                return number + 1
        return start + 1

    def _next_row(self, line: int) -> int:
        for number in range(line, len(self._lines)):
            if self._lines[number].lstrip().startswith("{"):
                return number + 1
        return line

    def _refuse(self, line: int, key: str, why: str) -> None:
        self._problems.append(Problem(self._name, line, key, why))


def _fill(value: object, row: dict[str, str]) -> object:
    if isinstance(value, str):
        for key, replacement in row.items():
            value = value.replace(f"{{{key}}}", replacement)
        return value
    if isinstance(value, list):
        return [_fill(item, row) for item in value]
    return value


def _string(entry: Mapping[str, Any], key: str) -> str:
    value = entry.get(key)
    if not isinstance(value, str) or not value.strip():
        raise _RefusedError(key, "missing" if value is None else f"{value!r} is not a text")
    return value


def _list(entry: Mapping[str, Any], key: str) -> list[str]:
    value = entry.get(key, [])
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise _RefusedError(key, "expected a list of texts")
    return list(value)


def _flag(entry: Mapping[str, Any], key: str, *, default: bool) -> bool:
    value = entry.get(key, default)
    if not isinstance(value, bool):
        raise _RefusedError(key, f"{value!r} is neither true nor false")
    return value


def _enum(entry: Mapping[str, Any], key: str, kind: type[_E]) -> _E:
    value = entry.get(key)
    if value is None:
        raise _RefusedError(key, "missing")
    try:
        return kind(value)
    except ValueError:
        raise _RefusedError(key, f"{value!r} is not one of {', '.join(kind)}") from None
