"""Silent faults inside a rank, one module per family. Each has `arm(runtime, request)`: it does the fault at once, or
makes sure that it happens at the next collective or step, or raises DrillRefusal and changes nothing. `Happened` is
called when it is done. What does not come within `PATIENCE_S` is off again.

Called by `worker.drills.drill` on the main thread, from a signal's handler: whatever is imported here must not import
torch, because the program itself may be in the middle of that. docs/drills.md says what each of them does.
"""

import gc
import sys
from collections.abc import Mapping
from typing import Any, TypeVar

from everstep.worker.link.runtime import Runtime
from everstep.worker.process.saying import say

T = TypeVar("T")

PATIENCE_S = 60.0
"""For the next collective or step. Longer than any usual step, shorter than a person waits."""


class DrillRefusal(Exception):  # noqa: N818 - an answer
    """The message says why this fault cannot be caused in this program."""


class Happened:
    """Reports that a drill has been done. The agent waits for that, and the rank's own output has it, so that the fault
    is not mistaken for a real one later."""

    def __init__(self, runtime: Runtime, request: Mapping[str, Any]) -> None:
        self._runtime = runtime
        self._request = request

    def __call__(self, what: str) -> None:
        note(self._runtime, what)
        self._runtime.answer_drill(self._request, "")


def note(runtime: Runtime, what: str) -> None:
    """In the rank's own output."""
    say(f"drill in rank {runtime.rank}: {what}")


def loaded(module: str) -> Any:  # noqa: ANN401 - a module of torch's
    """A module that the program has completely imported. Raises DrillRefusal."""
    found = sys.modules.get(module)
    spec = getattr(found, "__spec__", None)
    if found is None or getattr(spec, "_initializing", False):
        raise DrillRefusal(f"the program has not imported {module}")
    return found


def instances_of(cls: type[T]) -> list[T]:
    """All that live: an instance refers to its class, so the collector can list them."""
    classes, found = [cls], list[T]()
    while classes:
        one = classes.pop()
        classes += one.__subclasses__()
        found += [thing for thing in gc.get_referrers(one) if type(thing) is one]
    return found
