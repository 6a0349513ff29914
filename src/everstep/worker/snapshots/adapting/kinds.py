"""Classes of frameworks by name: a framework that the program did not load costs nothing, and is never imported."""

import gc
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch


def names_of(thing: object) -> tuple[str, ...]:
    """Full names of its class and of all bases, the class first."""
    return tuple(f"{kind.__module__}.{kind.__qualname__}" for kind in type(thing).__mro__)


def owner_of(thing: object, framework: str, is_wrapper: Callable[[object], bool]) -> Any | None:  # noqa: ANN401
    """The framework's wrapper in this process that steps this optimizer of torch's; None: there is none."""
    if framework not in sys.modules or not isinstance(thing, torch.optim.Optimizer):
        return None
    return next((each for each in _alive(is_wrapper) if getattr(each, "optimizer", None) is thing), None)


def _alive(is_wanted: Callable[[object], bool]) -> Iterator[Any]:
    """Objects of this process (25 ms for a million). By exact class: asking an object itself may run code of it."""
    wanted: dict[type, bool] = {}
    for each in gc.get_objects():
        kind = type(each)
        if kind not in wanted:
            wanted[kind] = is_wanted(each)
        if wanted[kind]:
            yield each
