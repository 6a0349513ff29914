"""A state dict of CPU tensors for NVIDIA's local checkpoint, whose own class asserts CUDA tensors.

A module of its own because the package's writer process imports the class by name. Called by checkpoint_savers.py and
by that process. Only what saving without replication calls; it copies as the package's own class copies off the device.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from nvidia_resiliency_ext.checkpointing.local.base_state_dict import TensorAwareStateDict


class CpuState(TensorAwareStateDict):  # type: ignore[misc]
    """Nested dictionaries and lists of CPU tensors."""

    def __init__(self, state_dict: dict[str, Any]) -> None:
        self.state_dict = state_dict

    def copy_tensors_to_cpu(self, non_blocking: bool = False) -> None:
        self.state_dict = _copied(self.state_dict)

    def restore_tensor_device(self, non_blocking: bool = True) -> None:
        """They are where they belong."""

    @property
    def tensors(self) -> Iterable[torch.Tensor]:
        raise NotImplementedError

    @property
    def is_hollow(self) -> bool:
        return False

    def pop_tensors(self) -> Sequence[torch.Tensor]:
        raise NotImplementedError

    def insert_tensors(self, tensor_data: Iterable[torch.Tensor]) -> None:
        raise NotImplementedError

    def init_tensors(self) -> None:
        raise NotImplementedError


def _copied(value: Any) -> Any:  # noqa: ANN401
    match value:
        case torch.Tensor():
            return value.detach().clone()
        case dict():
            return {key: _copied(one) for key, one in value.items()}
        case list() | tuple():
            return type(value)(_copied(one) for one in value)
        case _:
            return value
