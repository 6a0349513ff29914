"""`[[notices]]` of the TOML file: the receivers. Mistakes are found before a run starts.

A receiver's address is often a secret itself, so it can be named by an environment variable or by a file.
"""

import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from everstep.errors import ConfigError
from everstep.linux.regular import read_regular

KINDS = ("webhook", "slack", "email", "command")
_SECRETS = ("url", "token", "password")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,40}")


class Receiver(msgspec.Struct, frozen=True, kw_only=True):
    """A receiver of notices. `_NEEDS` lists the fields that a kind needs."""

    kind: str
    name: str = ""
    url: str = ""  # webhook; slack: of an incoming webhook, which cannot edit
    token: str = ""  # slack: of a bot, with `channel`: messages are edited
    channel: str = ""
    api: str = "https://slack.com/api"  # or of what speaks as Slack does
    host: str = ""  # email
    port: int = 587
    security: str = "starttls"  # or "ssl", "none"
    user: str = ""
    password: str = ""
    sender: str = ""
    to: tuple[str, ...] = ()
    argv: tuple[str, ...] = ()  # command: gets the notice as JSON on stdin
    edits: bool = False  # webhook, command: told of each change, under the same id
    drills: bool = False  # also of drills
    most: int = 10  # messages in `per_s`
    per_s: float = 600.0
    wait_s: float = 120.0  # a receiver that cannot edit gets an incident that is still open after this long
    limit_s: float = 10.0  # an answer that takes longer is none
    link: str = ""  # added to each message; {run} and {incident} are filled in

    @property
    def can_edit(self) -> bool:
        return self.edits or bool(self.kind == "slack" and self.token)


_NEEDS = {"webhook": ("url",), "slack": (), "email": ("host", "sender", "to"), "command": ("argv",)}


def load_receivers(path: Path, environ: Mapping[str, str] = os.environ) -> tuple[Receiver, ...]:
    """Raises ConfigError."""
    try:
        tables = tomllib.loads(read_regular(path).decode()).get("notices", [])
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not TOML: {error}") from error
    return receivers_of(tables, environ, str(path))


def receivers_of(tables: object, environ: Mapping[str, str], where: str) -> tuple[Receiver, ...]:
    """Raises ConfigError."""
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise ConfigError(f"{where}: notices must be tables: [[notices]]")
    found = [_receiver(dict(table), number, environ, where) for number, table in enumerate(tables, 1)]
    names = [receiver.name for receiver in found]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(f"{where}: two receivers of notices have the name {twice!r}: give each its own")
    return tuple(found)


def _receiver(table: dict[str, Any], number: int, environ: Mapping[str, str], where: str) -> Receiver:
    place = f"{where}: [[notices]] number {number}"
    for key in _SECRETS:
        if f"{key}_env" in table:
            name = str(table.pop(f"{key}_env"))
            if not environ.get(name):
                raise ConfigError(f"{place}: the variable {name!r} of {key}_env is not set")
            table[key] = environ[name]
        if f"{key}_file" in table:
            table[key] = _read(Path(str(table.pop(f"{key}_file"))).expanduser(), place)
    fields = [field.name for field in msgspec.structs.fields(Receiver)]
    unknown = [key for key in table if key not in fields]
    if unknown:
        allowed = ", ".join([*fields, *(f"{key}_env, {key}_file" for key in _SECRETS)])
        raise ConfigError(f"{place}: unknown key {unknown[0]!r}; allowed: {allowed}")
    table.setdefault("name", f"{table.get('kind', '')}-{number}")
    try:
        receiver = msgspec.convert(table, Receiver)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{place}: {error}") from error
    why = _why_not(receiver)
    if why:
        raise ConfigError(f"{place}: {why}")
    return receiver


def _why_not(receiver: Receiver) -> str:
    if receiver.kind not in KINDS:
        return f"kind {receiver.kind!r}; there are: {', '.join(KINDS)}"
    if not _NAME.fullmatch(receiver.name):
        return f"name {receiver.name!r}: letters, digits, - and _"
    missing = [key for key in _NEEDS[receiver.kind] if not getattr(receiver, key)]
    if missing:
        return f"{receiver.kind} needs {missing[0]}"
    if receiver.kind == "slack" and not receiver.url and not (receiver.token and receiver.channel):
        return "slack needs url (an incoming webhook), or token and channel (a bot, whose messages are edited)"
    addresses = [receiver.url, receiver.api if receiver.kind == "slack" else ""]
    if any(address and not address.startswith(("http://", "https://")) for address in addresses):
        return "an address begins with https:// or http://"
    if receiver.security not in ("starttls", "ssl", "none"):
        return f"security {receiver.security!r}; there are: starttls, ssl, none"
    if receiver.most < 1 or min(receiver.per_s, receiver.limit_s) <= 0.0 or receiver.wait_s < 0.0:
        return "most, per_s, wait_s and limit_s must be positive"
    return ""


def _read(path: Path, place: str) -> str:
    try:
        return read_regular(path).decode().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{place}: {path} cannot be read: {error}") from error
