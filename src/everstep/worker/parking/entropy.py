"""The first numbers that a program draws from the system's entropy: a new start would draw others, so its rank is
parked before it does.

The global generators do not count, they are drawn anew (`draws`); nor does what a library draws while it is imported.
No audit event exists for it, so three functions are wrapped until then.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False  # `typing` would be imported before the program imports it
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any


class Entropy:
    """`on_draw` is called before each draw, until `end`."""

    def __init__(self, on_draw: Callable[[], None]) -> None:
        self._on_draw = on_draw
        self._had: list[tuple[Any, str, Any]] = []

    def begin(self) -> None:
        self._wrap(os, "urandom", os.urandom)

    def begin_random(self, module: ModuleType) -> None:
        """`random` has just been loaded; its `_urandom` is what `os.urandom` was then."""
        urandom = next((had for owner, _, had in self._had if owner is os), None)
        if urandom is None:
            return
        self._wrap(module, "_urandom", urandom)
        generator = getattr(module, "Random", None)
        if generator is not None:
            self._had.append((generator, "seed", generator.seed))
            generator.seed = self._seeding(generator.seed)

    def end(self) -> None:
        for owner, name, function in self._had:
            setattr(owner, name, function)
        self._had.clear()

    def _wrap(self, owner: Any, name: str, function: Callable[[int], bytes]) -> None:  # noqa: ANN401
        def urandom(size: int, /) -> bytes:
            self._on_draw()
            return function(size)

        self._had.append((owner, name, function))
        setattr(owner, name, _like(urandom, function))

    def _seeding(self, function: Callable[..., None]) -> Callable[..., None]:
        def seed(generator: Any, a: Any = None, version: int = 2) -> None:  # noqa: ANN401
            if a is None:
                self._on_draw()
            function(generator, a, version)

        return _like(seed, function)


def _like(ours: Callable[..., Any], theirs: Callable[..., Any]) -> Callable[..., Any]:
    ours.__name__, ours.__qualname__ = theirs.__name__, theirs.__qualname__
    ours.__module__, ours.__doc__ = theirs.__module__, theirs.__doc__
    return ours
