"""The parameter that an entry of an optimizer's state belongs to, whatever wrote the entry and under which names.

An optimizer's own state_dict numbers its parameters; torch.distributed.checkpoint.state_dict names them, in a tree or,
flattened, in one key ("state.layers.0.weight.exp_avg"). Here all become the optimizer's own form. Called by `templates`
and `resharding`.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from everstep.checkpoint.persist.form.form import PathItem

_WRAPPERS = ("module.", "_orig_mod.")


class Numbering:
    """The parameters of one optimizer, by the names that modules give them."""

    def __init__(self, optimizer: torch.optim.Optimizer, objects: Iterable[object]) -> None:
        self.parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        names = {id(parameter): name for name, parameter in _named(objects)}
        self._index = {names[id(p)]: index for index, p in enumerate(self.parameters) if id(p) in names}
        self._groups: list[list[int]] = []
        for group in optimizer.param_groups:
            first = sum(map(len, self._groups))
            self._groups.append(list(range(first, first + len(group["params"]))))

    def own_path(self, path: tuple[PathItem, ...]) -> tuple[PathItem, ...]:
        """The path that the optimizer's own state_dict would have; the same one if nothing is known better."""
        if len(path) == 2 and isinstance(path[1], str):
            return (path[0], *self._unflattened(path[1]))
        if len(path) > 2 and path[1] == "state":
            index = self._number(str(path[2]))
            return path if index is None else (*path[:2], index, *path[3:])
        return path

    def complete(self, tree: dict[str, Any], now: Mapping[str, Any]) -> None:
        """Groups as they are here, with the checkpoint's values; what it does not say stays as it is."""
        tree.setdefault("state", {})
        groups = tree.setdefault("param_groups", [])
        for number, (indices, group) in enumerate(zip(self._groups, now["param_groups"], strict=True)):
            if number == len(groups):
                groups.append({})
            groups[number] = {**group, **groups[number], "params": indices}

    def _unflattened(self, key: str) -> tuple[PathItem, ...]:
        kind, _, rest = key.partition(".")
        for name, index in self._index.items():
            if rest.startswith(f"{name}.") and "." not in rest[len(name) + 1 :]:
                what = rest[len(name) + 1 :]
                if kind == "state":
                    return ("state", index, what)
                group = next(number for number, indices in enumerate(self._groups) if index in indices)
                return ("param_groups", (group,), what)
        return (key,)

    def _number(self, key: str) -> int | None:
        return int(key) if key.isdigit() else self._index.get(key)


def _named(objects: Iterable[object]) -> Iterable[tuple[str, torch.Tensor]]:
    for thing in objects:
        if isinstance(thing, torch.nn.Module):
            for name, parameter in thing.named_parameters(remove_duplicate=False):
                for wrapper in _WRAPPERS:
                    name = name.replace(wrapper, "")
                yield name, parameter
