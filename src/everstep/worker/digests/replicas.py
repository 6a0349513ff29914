"""The parameters of this process that can be compared with those of other ranks, and with whose.

Replicas are declared where DistributedDataParallel, or the placement of a DTensor, shows which ranks they are;
otherwise the controller learns them. What differs between ranks on purpose (shards, local SGD) is left out, and that is
reported.
"""

import dataclasses
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import torch

_NO_REPLICA = "parameters that are sharded without a replica cannot be compared"

Named = tuple[str, torch.Tensor]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Parameters to digest, in a fixed order, and the ranks that should hold the same; () if none are declared."""

    parameters: list[Named]
    replicas: tuple[int, ...] = ()
    missing: str = ""


def of_state(objects: Iterable[object], instances: Sequence[Any]) -> Target:
    """The modules that a State keeps, or its optimizers where it keeps none. `instances`: the process's DDPs."""
    listed = list(objects)
    if instances:
        return _of_ddp(instances)
    named = [
        (f"{place}.{name}", parameter)
        for place, thing in enumerate(listed)
        if isinstance(thing, torch.nn.Module)
        for name, parameter in thing.named_parameters()
    ]
    if not named:
        named = [pair for thing in listed for pair in _of_groups(thing)]
    return _comparable(named)


def of_optimizer(optimizer: object, instances: Sequence[Any]) -> Target:
    """Return what an optimizer steps; the names and the replicas come from the DDP that it belongs to, if there is
    one."""
    own = _of_groups(optimizer)
    ids = {id(parameter) for _, parameter in own}
    for instance in instances:
        target = _of_ddp([instance])
        if ids and ids <= {id(parameter) for _, parameter in target.parameters}:
            kept = [(name, parameter) for name, parameter in target.parameters if id(parameter) in ids]
            return dataclasses.replace(target, parameters=kept)
    return _comparable(own)


def _of_groups(optimizer: object) -> list[Named]:
    groups = getattr(optimizer, "param_groups", None)
    if not isinstance(groups, list):
        return []
    return [
        (f"group {number} parameter {place}", parameter)
        for number, group in enumerate(groups)
        for place, parameter in enumerate(group["params"])
    ]


def _of_ddp(instances: Sequence[Any]) -> Target:
    """The DDPs that share the first one's ranks."""
    if any(_averages_later(instance) for instance in instances):
        return Target(parameters=[], missing="DDP with local SGD: replicas differ on purpose between two averages")
    distributed: Any = torch.distributed
    replicas = tuple(int(rank) for rank in distributed.get_process_group_ranks(instances[0].process_group))
    named: list[Named] = []
    for place, instance in enumerate(instances):
        if tuple(distributed.get_process_group_ranks(instance.process_group)) == replicas:
            prefix = f"{place}." if len(instances) > 1 else ""
            left_out = set(getattr(instance, "parameters_to_ignore", ()))
            named += [(prefix + n, p) for n, p in instance.module.named_parameters() if n not in left_out]
    target = _comparable(named)
    if target.missing:
        return target
    return dataclasses.replace(target, replicas=replicas)


def _averages_later(instance: Any) -> bool:  # noqa: ANN401 - DDP, which need not be loaded
    hooks = getattr(instance, "_comm_hooks", ())
    return any("local" in getattr(hook, "__name__", "").lower() for hook, _ in hooks)


def _comparable(named: Sequence[Named]) -> Target:
    """Plain tensors as they are. Of DTensors the local shards, where the placement names replicas of them."""
    module: Any = sys.modules.get("torch.distributed.tensor")
    dtensor = getattr(module, "DTensor", None)
    if dtensor is None or not any(isinstance(tensor, dtensor) for _, tensor in named):
        return Target(parameters=[(name, tensor) for name, tensor in named if _is_plain(tensor)])
    groups: defaultdict[tuple[int, ...], list[Named]] = defaultdict(list)
    known: dict[tuple[Any, Any], tuple[int, ...]] = {}  # a mesh is expensive to look at, and shared by most parameters
    for name, tensor in named:
        if isinstance(tensor, dtensor):
            key = (tensor.device_mesh, tensor.placements)
            if key not in known:
                known[key] = _replicas_of(tensor)
            with torch.no_grad():
                groups[known[key]].append((name, tensor.to_local()))
    replicas = max((ranks for ranks in groups if len(ranks) > 1), key=lambda r: _bytes(groups[r]), default=())
    if not replicas:
        return Target(parameters=[], missing=_NO_REPLICA)
    left_out = len(named) - len(groups[replicas])
    missing = f"{left_out} of {len(named)} parameters: {_NO_REPLICA}" if left_out else ""
    return Target(parameters=groups[replicas], replicas=replicas, missing=missing)


def _replicas_of(tensor: Any) -> tuple[int, ...]:  # noqa: ANN401 - DTensor, which need not be loaded
    """Ranks that hold the same shard: those that differ from this one only in replicated dimensions of the mesh."""
    mesh = tensor.device_mesh
    here = mesh.get_coordinate()
    if here is None or any(placement.is_partial() for placement in tensor.placements):
        return ()
    place = tuple(slice(None) if p.is_replicate() else at for p, at in zip(tensor.placements, here, strict=True))
    return tuple(sorted(int(rank) for rank in mesh.mesh[place].reshape(-1).tolist()))


def _is_plain(tensor: torch.Tensor) -> bool:
    is_ordinary = type(tensor) in (torch.Tensor, torch.nn.Parameter)
    return is_ordinary and tensor.layout is torch.strided and not tensor.is_meta and not tensor.is_quantized


def _bytes(named: Sequence[Named]) -> int:
    return sum(tensor.numel() * tensor.element_size() for _, tensor in named)
