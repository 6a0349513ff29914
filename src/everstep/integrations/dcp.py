"""Loops that give their state to `torch.distributed.checkpoint`, torchtitan's among them: the same state, every step.

    states = {"model": ..., "optimizer": ..., "lr_scheduler": ..., "train_state": ...}   # as for dcp.save and dcp.load
    state = everstep.integrations.dcp.state_of(states)    # in place of dcp.load: restores, if there is a snapshot
    state.begin()
    while train_state.step < num_steps:
        ...
        state.complete_step()

Called by programs. What `dcp.load` does in place is done in place here: tensors keep their memory, plain values are
put back into the mapping that was given. Each rank keeps its own shards; nothing is gathered.
"""

from collections.abc import Mapping, MutableMapping
from typing import Any

import torch

from everstep.worker.snapshots.state import State, Stateful


def state_of(states: MutableMapping[str, Any], **objects: Stateful) -> State:
    """One keyword for each entry: objects with `state_dict`, tensors, nests of tensors and plain values. Raises
    ValueError when two names become one keyword."""
    names: dict[str, str] = {}
    for name in states:
        other = names.setdefault(_keyword(name), name)
        if other != name:
            raise ValueError(f"{other!r} and {name!r} are both {_keyword(name)!r} as a keyword: rename one of them")
    return State(**{keyword: _part(states, name) for keyword, name in names.items()}, **objects)


def _keyword(name: str) -> str:
    return name.replace(".", "_")  # names with a dot are everstep's own


def _part(states: MutableMapping[str, Any], name: str) -> Stateful:
    thing = states[name]
    if callable(getattr(thing, "state_dict", None)) and callable(getattr(thing, "load_state_dict", None)):
        return thing  # type: ignore[no-any-return]
    return _Plain(states, name)


class _Plain:
    """An entry that is no object with a state, but the state itself."""

    def __init__(self, states: MutableMapping[str, Any], name: str) -> None:
        self._states, self._name = states, name

    def state_dict(self) -> object:
        return self._states[self._name]

    def load_state_dict(self, state: object) -> None:
        self._states[self._name] = _in_place(self._states[self._name], state)


def _in_place(old: object, new: object) -> object:
    """`new`, in the memory and the containers of `old` as far as there are any."""
    if isinstance(old, torch.Tensor) and isinstance(new, torch.Tensor):
        with torch.no_grad():
            return old.copy_(new)
    if isinstance(old, MutableMapping) and isinstance(new, Mapping):
        for key in new:
            old[key] = _in_place(old.get(key), new[key])
        return old
    if isinstance(old, list) and isinstance(new, list):
        old[:] = [_in_place(old[index] if index < len(old) else None, each) for index, each in enumerate(new)]
        return old
    return new
