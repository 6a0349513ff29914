"""`spec.json`: what the launcher was asked for. Written by the launcher, read by every controller of the run.

The journal stays the truth: a controller that finds a journal takes policy and shape from there, and from here only
what may differ between attempts (the attempt's number, the program's arguments).
"""

from pathlib import Path

import msgspec

from everstep.core.state.policy import Policy
from everstep.errors import ConfigError, JournalError
from everstep.linux.files import write_whole
from everstep.linux.regular import read_regular
from everstep.model.spec import RunSpec
from everstep.model.text import without_surrogates

SPEC_NAME = "spec.json"
JOURNAL_NAME = "journal.jsonl"
SECRET_NAME = "secret"
TOKEN_NAME = "token"
READ_TOKEN_NAME = "token-read"
ADDRESS_NAME = "controller.json"


class SpecFile(msgspec.Struct, frozen=True, kw_only=True):
    run: str
    spec: RunSpec
    policy: Policy
    attempt: int = 1


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """`controller.json`: where the controller listens."""

    pid: int
    port: int
    host: str = "127.0.0.1"
    fingerprint: str = ""  # SHA-256 of the certificate; empty: plain HTTP


def load_spec(run_dir: Path) -> SpecFile:
    """Raises ConfigError: without it there is no run."""
    path = run_dir / SPEC_NAME
    try:
        return msgspec.json.decode(read_regular(path), type=SpecFile)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{path} is not a run's specification: {error}") from error


def save_json(path: Path, value: msgspec.Struct) -> None:
    """Whole or not at all. Raises JournalError."""
    try:
        write_whole(path, _encoded(value), mode=0o600)
    except OSError as error:
        raise JournalError(f"cannot write {path}: {error.strerror}") from error


def _encoded(value: msgspec.Struct) -> bytes:
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:  # a path that is not UTF-8
        return msgspec.json.encode(without_surrogates(msgspec.to_builtins(value, str_keys=True)))
