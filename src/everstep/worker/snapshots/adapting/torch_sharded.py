"""torch's own sharded optimizers and modules whose `state_dict` gathers what other ranks hold."""

from collections.abc import Mapping
from typing import Any

import torch

from everstep.worker.snapshots.adapting.kinds import names_of

_ZERO = "torch.distributed.optim.zero_redundancy_optimizer.ZeroRedundancyOptimizer"
_FSDP1 = "torch.distributed.fsdp.fully_sharded_data_parallel.FullyShardedDataParallel"


def adapt(thing: object) -> Any | None:  # noqa: ANN401
    """Stand-in for it; None: it is none of these."""
    if _ZERO in names_of(thing):
        return ZeroShard(thing)
    if isinstance(thing, torch.nn.Module) and any(_FSDP1 in names_of(each) for each in thing.modules()):
        return FlatShards(thing)
    return None


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


class FlatShards:
    """This rank's part of a module under FSDP1, whose own `state_dict` gathers the whole model."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module

    def state_dict(self) -> dict[str, Any]:
        return {"tensors": [each.detach() for each in self._tensors()]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        with torch.no_grad():
            for mine, saved in zip(self._tensors(), state["tensors"], strict=True):
                mine.detach().copy_(saved)

    def _tensors(self) -> list[torch.Tensor]:
        """Shards of flat parameters, parameters that are in none, and buffers."""
        handles = [getattr(each, "_handle", None) for each in self._module.modules() if _FSDP1 in names_of(each)]
        flats = [handle.flat_param for handle in handles if handle is not None]
        theirs = {id(each) for flat in flats for each in (flat, *(flat._params or ()), *(flat._shared_params or ()))}
        others = [each for each in self._module.parameters() if id(each) not in theirs]
        return [*(getattr(flat, "_local_shard", flat) for flat in flats), *others, *self._module.buffers()]
