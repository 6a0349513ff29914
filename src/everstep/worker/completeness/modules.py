"""The parts of a module, read from its own dictionaries: a class of the program's may call anything `buffers`."""

from collections.abc import Iterator

import torch
from torch import nn


def all_in(module: nn.Module) -> Iterator[nn.Module]:
    """The module and all below it, each once."""
    waiting, seen = [module], {id(module)}
    while waiting:
        each = waiting.pop()
        yield each
        for child in vars(each).get("_modules", {}).values():
            if child is not None and id(child) not in seen:
                seen.add(id(child))
                waiting.append(child)


def rewritten(module: nn.Module, asked: set[int]) -> Iterator[torch.Tensor]:
    """Parameters that hooks put into the state dict in another form (a fused weight as its parts), if it was asked for.
    What the hooks make of them is compared after a restore."""
    waiting = [(module, False)]
    seen: set[int] = set()
    while waiting:
        each, is_below = waiting.pop()
        seen.add(id(each))
        own = vars(each)
        has_hook = is_below or bool(own.get("_state_dict_hooks"))
        if has_hook and id(each) in asked:
            yield from (p for p in own.get("_parameters", {}).values() if p is not None)
        children = own.get("_modules", {}).values()
        waiting += [(child, has_hook) for child in children if child is not None and id(child) not in seen]


def parameters(module: nn.Module) -> Iterator[nn.Parameter]:
    for each in all_in(module):
        yield from (p for p in vars(each).get("_parameters", {}).values() if p is not None)


def buffers(module: nn.Module, *, only_persistent: bool = False) -> Iterator[torch.Tensor]:
    """`only_persistent`: those that a checkpoint has."""
    for each in all_in(module):
        left_out = vars(each).get("_non_persistent_buffers_set", ()) if only_persistent else ()
        for name, buffer in vars(each).get("_buffers", {}).items():
            if buffer is not None and name not in left_out:
                yield buffer
