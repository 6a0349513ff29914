"""torch's own sharded optimizers and modules whose `state_dict` gathers what other ranks hold."""

from collections.abc import Mapping
from typing import Any

from everstep.worker.snapshots.adapting.kinds import names_of

_ZERO = "torch.distributed.optim.zero_redundancy_optimizer.ZeroRedundancyOptimizer"


def adapt(thing: object) -> Any | None:  # noqa: ANN401
    """Stand-in for it; None: it is none of these."""
    return ZeroShard(thing) if _ZERO in names_of(thing) else None


class ZeroShard:
    """This rank's part of a ZeroRedundancyOptimizer, whose own `state_dict` wants all parts on one rank first."""

    is_comparable = True  # after a restore, with what was restored

    def __init__(self, optimizer: Any) -> None:  # noqa: ANN401
        self._optimizer = optimizer

    def state_dict(self) -> dict[str, Any]:
        groups = [{name: value for name, value in g.items() if name != "params"} for g in self._optimizer.param_groups]
        return {"shard": self._optimizer.optim.state_dict(), "groups": groups}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._optimizer.optim.load_state_dict(state["shard"])
        for group, saved in zip(self._optimizer.param_groups, state["groups"], strict=True):
            group.update(saved)
