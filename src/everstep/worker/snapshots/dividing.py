"""Tensors of a rank that every rank of its node holds alike, and that need to be kept once per node only.

Known for DistributedDataParallel: parameters, and the state of optimizers that step all of them on every rank. Where an
optimizer steps a part of them only (any kind of ZeRO), where averages are taken later (local SGD), or where some rank
of the node is not among the replicas, nothing is divided. Called by `worker.snapshots.snapshots`; the answer depends on
the program only, so it is the same on all ranks.
"""

from collections.abc import Iterator
from typing import Protocol

import torch

from everstep.checkpoint.dividing import Division, divide
from everstep.worker.digests.replicas import Target
from everstep.worker.snapshots.stepping import Optimizers, Place, place_of

LEAST_STATE_BYTES = 16 << 20
"""Less is kept whole by every rank, so that a restart needs no other rank's memory."""

LEAST_BYTES = 4 << 10
"""A tensor that is smaller costs more to look up than to keep."""


class Runtime(Protocol):
    """The part of `worker.link.runtime.Runtime` that is used here."""

    rank: int
    siblings: dict[int, list[int]]
    divides: bool


class Dividing:
    """The division on one rank."""

    def __init__(self, runtime: Runtime, optimizers: Optimizers) -> None:
        self._rank = runtime.rank
        self._ranks = (runtime.rank, *runtime.siblings)
        self.is_possible = runtime.divides and len(self._ranks) > 1
        self._optimizers = optimizers
        self._target = Target(parameters=[])
        self._plan: object = None  # what `_division` was found out for
        self._addresses: list[int] = []
        self._version = -1
        self._division: Division | None = None

    def begin(self, target: Target) -> None:
        """The replicas that DistributedDataParallel declares; before the first step."""
        self._target = target
        self._plan = None

    def of(self, plan: object, tensors: list[torch.Tensor], addresses: list[int]) -> Division | None:
        """Return the division: the same object for as long as it is unchanged; None: this rank keeps everything."""
        if not (self.is_possible and self._target.replicas and not self._target.missing):
            return None
        if self._plan is not plan or self._version != self._optimizers.version or self._have_moved(addresses):
            self._division = self._find(tensors)
            self._plan, self._addresses, self._version = plan, addresses, self._optimizers.version
        return self._division

    def _have_moved(self, addresses: list[int]) -> bool:
        if self._division is None or addresses == self._addresses:
            return addresses != self._addresses and self._division is None
        return any(addresses[number] != self._addresses[number] for number in self._division.owners)

    def _find(self, tensors: list[torch.Tensor]) -> Division | None:
        if not set(self._ranks) <= set(self._target.replicas):
            return None
        if sum(tensor.nbytes for tensor in tensors) <= LEAST_STATE_BYTES:
            return None
        known = self._named()
        if known is None:
            return None
        found = {number: known.get(place_of(tensor)) for number, tensor in enumerate(tensors)}
        names = {number: name for number, name in found.items() if name is not None}
        if len(set(names.values())) < len(names):  # stored twice, as by views of other shapes
            return None
        sizes = {number: tensors[number].nbytes for number in names}
        return divide(self._rank, self._ranks, names, sizes) if names else None

    def _named(self) -> dict[Place, str] | None:
        """Names of what is replicated by its place in memory; None: that is not certain of all of it."""
        name_of = {id(parameter): name for name, parameter in self._target.parameters}
        stepped: set[int] = set()
        named: dict[Place, str] = {}
        for name, tensor, owner in self._owned(name_of):
            if not name:
                return None  # it steps something that no DistributedDataParallel has made equal
            stepped.add(owner)
            place = place_of(tensor)
            if place[1] >= LEAST_BYTES:
                if place in named:
                    return None
                named[place] = name
        trained = {id(parameter) for _, parameter in self._target.parameters if parameter.requires_grad}
        return named if trained <= stepped else None

    def _owned(self, name_of: dict[int, str]) -> Iterator[tuple[str, torch.Tensor, int]]:
        for number, optimizer in enumerate(self._optimizers.alive()):
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    name = name_of.get(id(parameter), "")
                    yield name, parameter, id(parameter)
                    state = optimizer.state.get(parameter)
                    for key, value in state.items() if isinstance(state, dict) else ():
                        if isinstance(value, torch.Tensor):
                            yield name and f"{name} {number} {key}", value, id(parameter)
