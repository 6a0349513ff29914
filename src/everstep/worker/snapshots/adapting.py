"""Objects whose own `state_dict` is useless after every step, and what is kept of them in its place.

Called by `everstep.State` for each object it is given.
"""

import sys
from collections.abc import Mapping
from typing import Any

_ZERO = "torch.distributed.optim.zero_redundancy_optimizer"


def adapted(thing: Any) -> Any:  # noqa: ANN401 - whatever the program keeps
    """The object itself, or what stands for it in a State."""
    module = sys.modules.get(_ZERO)
    if module is not None and isinstance(thing, module.ZeroRedundancyOptimizer):
        return ZeroShard(thing)
    return thing


class ZeroShard:
    """This rank's part of a ZeroRedundancyOptimizer, whose own `state_dict` wants all parts on one rank first."""

    def __init__(self, optimizer: Any) -> None:  # noqa: ANN401
        self._optimizer = optimizer

    def state_dict(self) -> dict[str, Any]:
        groups = [{name: value for name, value in g.items() if name != "params"} for g in self._optimizer.param_groups]
        return {"shard": self._optimizer.optim.state_dict(), "groups": groups}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._optimizer.optim.load_state_dict(state["shard"])
        for group, saved in zip(self._optimizer.param_groups, state["groups"], strict=True):
            group.update(saved)
