"""When digests are taken: after a step of State's loop, or, without State, before the optimizer's next step.

Before, because a wrapping optimizer (ZeRO) hands its results round after the inner one has stepped, and only the next
step finds the same parameters on all ranks. Both count the same on every rank. A failure of ours ends the digests of
this process, is reported, and costs nothing else.
"""

import sys
import weakref
from collections.abc import Iterable
from typing import Any

from everstep.worker.digests import ddp_order, replicas
from everstep.worker.digests.digest import Digests
from everstep.worker.link.runtime import Runtime
from everstep.worker.process.capturing import is_capturing


class StateDigests:
    """Digests of what a State keeps. Made when its loop begins. The caller catches what this raises."""

    def __init__(self, runtime: Runtime, objects: Iterable[object]) -> None:
        self._digests = Digests(runtime, runtime.digest_every)
        self._objects = list(objects)
        self._instances = ddp_order.find(self._objects)

    def after_step(self, step: int) -> None:
        if is_capturing():
            return
        if self._digests.is_due(step):
            self._digests.after_step(step, replicas.of_state(self._objects, self._instances))
        else:
            self._digests.poll()


class OptimizerDigests:
    """Digests of what the first optimizer that steps is given. Its steps count from 0 in every generation."""

    def __init__(self, runtime: Runtime) -> None:
        self._digests = Digests(runtime, runtime.digest_every)
        self._optimizer: weakref.ref[Any] | None = None
        self._num_done = 0
        self._instances: list[weakref.ref[Any]] | None = None

    def before_step(self, optimizer: object) -> None:
        known = self._optimizer() if self._optimizer is not None else None
        if known is None:
            self._optimizer = weakref.ref(optimizer)
            self._instances = None
        elif known is not optimizer:
            return
        step, self._num_done = self._num_done - 1, self._num_done + 1
        if step < 0:
            return
        if not self._digests.is_due(step):
            self._digests.poll()
            return
        # Within a compiled optimizer step the sums would be traced, and compiled anew for every shape.
        dynamo: Any = sys.modules.get("torch._dynamo")
        take = self._take if dynamo is None else dynamo.disable(self._take)
        take(optimizer, step)

    def _take(self, optimizer: object, step: int) -> None:
        if self._instances is None:
            self._instances = [weakref.ref(instance) for instance in ddp_order.find(())]
        alive = [instance for known in self._instances if (instance := known()) is not None]
        self._digests.after_step(step, replicas.of_optimizer(optimizer, alive))
