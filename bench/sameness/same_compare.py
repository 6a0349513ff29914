"""What two launchers made of the same program, and where it differs. Pure but for `outcome`, which reads a folder.

Used by same_programs.py.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_OF_RANK = re.compile(r"(?:attempt_|gen-)(\d+)/(?:rank-)?(\d+)/(stdout|stderr)\.log$")
_FRAMEWORK_LINE = re.compile(rb"^\[(rank\d+\]:)?\[?[WEI]\d{4} .*\n", re.MULTILINE)
_ADDRESS = re.compile(rb"0x[0-9a-f]{6,}")
_PID = re.compile(rb"\(pid \d+\)")


_PLACE = b"<place>"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """`exit_code` None: it did not end in time."""

    exit_code: int | None
    streams: dict[str, bytes]  # "rank 0 try 0 stdout", or "launcher stdout"
    files: dict[str, bytes]  # below the folder in which it ran, pyc files left out
    draws: dict[str, tuple[str, ...]]  # name -> values of all ranks and tries
    took_s: float = 0.0


def outcome(folder: Path, logs: Path | None, stdout: bytes, exit_code: int | None, took_s: float) -> Outcome:
    """Of a program that ran in `folder`; with `logs`, the folder of its ranks' streams. The place of both is masked."""
    place = str(folder.parent).encode()
    files = {
        str(path.relative_to(folder)): path.read_bytes().replace(place, _PLACE)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }
    draws: dict[str, list[str]] = {}
    for name in [name for name in files if name.startswith("draws-")]:
        for line in files.pop(name).decode().splitlines():
            what, value = json.loads(line)
            draws.setdefault(what, []).append(value)
    streams = {"launcher stdout": stdout} if logs is None else _streams(logs)
    return Outcome(
        exit_code=exit_code,
        streams={name: calm(text.replace(place, _PLACE)) for name, text in streams.items()},
        files=files,
        draws={name: tuple(values) for name, values in draws.items()},
        took_s=took_s,
    )


def _streams(logs: Path) -> dict[str, bytes]:
    found = {}
    for path in sorted(logs.rglob("*.log")):
        match = _OF_RANK.search(str(path))
        if match is not None and not path.is_symlink():
            attempt, rank, stream = match.groups()
            found[f"rank {rank} try {attempt} {stream}"] = path.read_bytes()
    return found


def calm(text: bytes) -> bytes:
    """Without what differs between two runs of one launcher: the framework's time stamps, addresses, processes."""
    return _PID.sub(b"(pid)", _ADDRESS.sub(b"0x", _FRAMEWORK_LINE.sub(b"", text)))


def differences(expected: Outcome, got: Outcome) -> list[str]:
    """Empty: the program could not tell, and neither could its user."""
    found = []
    if expected.exit_code != got.exit_code:
        found.append(f"exit code: {_code(expected.exit_code)}, here {_code(got.exit_code)}")
    found += _of_streams(expected.streams, got.streams)
    for name in sorted({*expected.files, *got.files}):
        if name not in got.files:
            found.append(f"file {name}: not written")
        elif name not in expected.files:
            found.append(f"file {name}: written here only")
        elif expected.files[name] != got.files[name]:
            found.append(f"file {name}: {_first_difference(expected.files[name], got.files[name])}")
    for name in sorted({*expected.draws, *got.draws}):
        was_drawn, drawn = expected.draws.get(name, ()), got.draws.get(name, ())
        if _shape(was_drawn) != _shape(drawn):
            found.append(f"draw {name}: {_told(was_drawn)}, here {_told(drawn)}")
    return found


def _of_streams(expected: dict[str, bytes], got: dict[str, bytes]) -> list[str]:
    """The same difference on several ranks is one."""
    names: dict[str, list[str]] = {}
    for name in sorted({*expected, *got}):
        was, now = expected.get(name, b""), got.get(name, b"")
        if was != now:
            names.setdefault(_first_difference(was, now), []).append(name)
    return [f"{', '.join(some)}: {what}" for what, some in names.items()]


def _shape(values: Sequence[str]) -> tuple[int, int]:
    return len(values), len(set(values))


def _told(values: Sequence[str]) -> str:
    return f"{len(set(values))} distinct of {len(values)}"


def _code(code: int | None) -> str:
    return "none (did not end)" if code is None else str(code)


def _first_difference(was: bytes, now: bytes) -> str:
    """The first line that differs, on both sides."""
    before, after = was.splitlines(keepends=True), now.splitlines(keepends=True)
    number = next(
        (at for at, (one, other) in enumerate(zip(before, after, strict=False)) if one != other),
        min(len(before), len(after)),
    )
    sides = [repr(lines[number][:200])[1:] if number < len(lines) else "(nothing)" for lines in (before, after)]
    return f"line {number + 1}: {sides[0]}, here {sides[1]}"
