"""The form that an object's state must have for a checkpoint to be read into it: tensors of the right size and
sharding.

Called by `resharding`. Most of it is the object's own state_dict; an optimizer that has not stepped has no state yet,
so what the checkpoint knows of it takes the form of the parameter that it belongs to.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

from everstep.checkpoint.persist.form.form import PathItem, name_of
from everstep.checkpoint.persist.form.numbering import Numbering
from everstep.checkpoint.persist.form.paths import typed_path
from everstep.checkpoint.persist.read.giving import Stateful
from everstep.checkpoint.persist.read.opening import leaves_of
from everstep.errors import SnapshotError

_SHOWN = 5


class Template:
    """The template for one keyword of a State."""

    def __init__(self, keyword: str, thing: Stateful, objects: Iterable[object], metadata: Metadata) -> None:
        self._keyword = keyword
        self._thing = thing
        self._metadata = metadata
        self._numbering = Numbering(thing, objects) if isinstance(thing, torch.optim.Optimizer) else None
        self._state = thing.state_dict()
        entries = metadata.state_dict_metadata
        self.names = [name for name in entries if name == keyword or name.startswith(f"{keyword}.")]

    def path(self, name: str) -> tuple[PathItem, ...]:
        """Where `name` belongs in the object's state."""
        path = typed_path(self._metadata, name) or (self._keyword, name[len(self._keyword) + 1 :])
        return path if self._numbering is None else self._numbering.own_path(path)

    def leaves(self) -> dict[str, Any]:
        """By name: tensors to be filled, None for other values. Raises SnapshotError: the checkpoint lacks a tensor, or
        has one of another size."""
        now = {name_of(path): leaf for path, leaf in leaves_of(self._keyword, self._state)}
        there = {name: name_of(self.path(name)) for name in self.names}  # as written: as it is named here
        known = set(there.values())
        missing = [name for name, leaf in now.items() if isinstance(leaf, torch.Tensor) and name not in known]
        if missing:
            more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
            raise SnapshotError(
                f"State({self._keyword}=...): the checkpoint has no {', '.join(missing[:_SHOWN])}{more}; "
                f"it was written for another {type(self._thing).__name__}"
            )
        return {name: self._empty(name, now.get(own)) for name, own in there.items()}

    def complete(self, tree: Any) -> Any:  # noqa: ANN401 - a state_dict
        """Add what the object's load_state_dict needs and the checkpoint does not have."""
        if self._numbering is not None:
            self._numbering.complete(tree, self._state)
        return tree

    def _empty(self, name: str, now: object) -> torch.Tensor | None:
        entry = self._metadata.state_dict_metadata[name]
        if not isinstance(entry, TensorStorageMetadata):
            return None
        like = now if isinstance(now, torch.Tensor) else self._parameter_of(name)
        if like is not None and tuple(like.shape) == tuple(entry.size):
            return torch.empty_like(like, dtype=entry.properties.dtype, requires_grad=False)
        if isinstance(now, torch.Tensor):
            raise SnapshotError(
                f"State({self._keyword}=...): {name} has size {tuple(entry.size)} in the checkpoint and "
                f"{tuple(now.shape)} here"
            )
        return torch.empty(entry.size, dtype=entry.properties.dtype)

    def _parameter_of(self, name: str) -> torch.Tensor | None:
        path = self.path(name)
        if self._numbering is None or len(path) < 3 or path[1] != "state" or not isinstance(path[2], int):
            return None
        return self._numbering.parameters[path[2]] if path[2] < len(self._numbering.parameters) else None
