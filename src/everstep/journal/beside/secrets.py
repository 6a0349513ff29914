"""Known secrets: keys and tokens of a run, values of its variables, and of the shell's own whose name suggests a
secret. Used to mask them in what leaves this machine; never shown, never kept.
"""

import contextlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from everstep.linux.regular import regular

_FILES = ("secret", "token", "token-read", "join-token", "pilot-token")
_SPEAKS = re.compile(r"(?i)pass|pwd|secret|token|key|auth|cred|webhook|dsn|cookie")
_PATHS = ("PWD", "OLDPWD", "SSH_AUTH_SOCK", "XAUTHORITY", "SSH_ASKPASS")
_MAX_BYTES = 1 << 20


def secret_values(run_dir: Path, environ: Mapping[str, str]) -> set[str]:
    """Secrets of this run and shell. All variables of the run count: their purpose is unknown here."""
    found = secrets_of(environ)
    for name in _FILES:
        found.update(_read(run_dir / name).split())
    for path in sorted(run_dir.glob("nodes/*/credentials.json")):
        found.update(_strings(_read(path)))
    for path in sorted(run_dir.glob("variables/*.json")):
        found.update(_strings(_read(path)))
    return {value.strip() for value in found if value.strip()}


def secrets_of(environ: Mapping[str, str]) -> set[str]:
    """Values of the variables whose name suggests a secret."""
    return {value for name, value in environ.items() if _SPEAKS.search(name) and name not in _PATHS}


def _read(path: Path) -> str:
    with contextlib.suppress(OSError):
        with regular(path) as file:
            return file.read(_MAX_BYTES).decode(errors="replace")
    return ""


def _strings(text: str) -> Iterator[str]:
    """All that a JSON file says, but not its keys."""
    with contextlib.suppress(msgspec.MsgspecError, UnicodeError, RecursionError):
        left = [msgspec.json.decode(text)]
        while left:
            value = left.pop()
            if isinstance(value, str):
                yield value
            elif isinstance(value, dict):
                left += list(value.values())
            elif isinstance(value, list):
                left += value
