"""A machine that computes wrongly now and then: after a step, with a given chance, a parameter is wrong.

What is wrong is one bit, or a NaN (`worker.drills.parameters`). The machine has it, not the process: the agent arms it
in every process of its first device, ranks and examinations alike. The same seed goes wrong in the same steps of the
machine's first, second, third process.
"""

import random
from collections.abc import Mapping
from typing import Any

from everstep.worker.drills import Happened, note, parameters
from everstep.worker.link.runtime import Runtime

CHANCE = 1.0
RESULT = "bit"


def arm(runtime: Runtime, request: Mapping[str, Any]) -> None:
    options = request.get("options") or {}
    chance, seed = float(options.get("chance", CHANCE)), int(options.get("seed", 0))
    result = str(options.get("result", RESULT))
    fault = Miscomputing(runtime, chance, result, random.Random(f"{seed}/{options.get('process', 0)}"))
    runtime.step_hooks[:] = [hook for hook in runtime.step_hooks if not isinstance(hook, Miscomputing)] + [fault]
    Happened(runtime, request)(f"from now on each step is computed wrongly with chance {chance:g} (seed {seed})")


class Miscomputing:
    """Called at the end of every step."""

    def __init__(self, runtime: Runtime, chance: float, result: str, chances: random.Random) -> None:
        self._runtime = runtime
        self._chance = chance
        self._result = result
        self._chances = chances

    def __call__(self, step: int) -> None:
        if self._chances.random() >= self._chance:
            return
        what = parameters.spoil(self._result)
        if what:
            note(self._runtime, f"after step {step}: {what}")
