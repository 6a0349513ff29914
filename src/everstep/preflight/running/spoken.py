"""Messages from the child process of a check to the runner: one JSON line each, on a descriptor of its own."""

from typing import TypeAlias

import msgspec

from everstep.preflight.result import Result
from everstep.preflight.settings import Settings


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """The runner's only line, on standard input."""

    settings: Settings
    checks: tuple[str, ...]
    parent: int  # pid of the runner


class _Line(msgspec.Struct, frozen=True, kw_only=True, tag_field="is"):
    pass


class Begun(_Line, frozen=True, kw_only=True, tag="begun"):
    check: str


class Busy(_Line, frozen=True, kw_only=True, tag="busy"):
    what: str


class Found(_Line, frozen=True, kw_only=True, tag="found"):
    result: Result


class Ended(_Line, frozen=True, kw_only=True, tag="ended"):
    check: str
    took_s: float
    error: str = ""  # our check raised: it is to blame, not the node


Line: TypeAlias = Begun | Busy | Found | Ended
