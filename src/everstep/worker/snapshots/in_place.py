"""Tensors of the program that a snapshot can be read into directly.

Answers: given a module, the live tensor of each entry of its state dict, if `load_state_dict` would do nothing but copy
each entry into that tensor. The program's `load_state_dict` is called all the same, with the same tensors, whose copy
onto themselves costs nothing. Where anything of the program's takes part in loading, it gets values of its own.
"""

from collections.abc import Mapping

import torch
from torch import nn

_METHODS = ("state_dict", "load_state_dict", "_save_to_state_dict", "_load_from_state_dict")
_HOOKS = (
    "_state_dict_hooks",
    "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
)


def tensors_of(thing: object) -> Mapping[str, torch.Tensor]:
    """By name of the entry; empty where loading is more than copying."""
    if not isinstance(thing, nn.Module) or torch.__future__.get_swap_module_params_on_conversion():
        return {}
    if not all(map(_is_plain, thing.modules())):
        return {}
    own: dict[str, torch.Tensor] = thing.state_dict()
    return own


def _is_plain(module: nn.Module) -> bool:
    return (
        all(_is_torchs(module, method) for method in _METHODS)
        and not any(vars(module).get(hooks) for hooks in _HOOKS)
        and type(module).get_extra_state is nn.Module.get_extra_state
    )


def _is_torchs(module: nn.Module, method: str) -> bool:
    """Whether it is torch's own: also the few layers of torch that read older versions of their state."""
    if method in vars(module):
        return False
    found = getattr(type(module), method)
    return found is getattr(nn.Module, method) or str(getattr(found, "__module__", "")).startswith("torch.nn.modules.")
