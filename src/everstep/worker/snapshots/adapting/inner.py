"""An optimizer of torch's inside a framework's, with the parameters that it steps: fp32 masters that no module has."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch


class Inner:
    """Masters, state and hyperparameters of one optimizer. `masters`: the tensors that it steps, in their order."""

    def __init__(self, optimizer: Any, masters: Callable[[], Sequence[torch.Tensor]] | None = None) -> None:  # noqa: ANN401
        self._optimizer = optimizer
        self._masters = masters if masters is not None else self._stepped

    def state_dict(self) -> dict[str, Any]:
        masters, state = self._masters(), self._optimizer.state
        return {
            "masters": [master.detach() for master in masters],
            "state": [dict(state[master]) if master in state else {} for master in masters],
            "groups": [_without_parameters(group) for group in self._optimizer.param_groups],
        }

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Raises ValueError for another number of masters or groups."""
        masters = self._masters()
        with torch.no_grad():
            for master, value in zip(masters, saved["masters"], strict=True):
                master.detach().copy_(value)
            for master, values in zip(masters, saved["state"], strict=True):
                if values:
                    _load_state(self._optimizer.state[master], values)
        for group, values in zip(self._optimizer.param_groups, saved["groups"], strict=True):
            group.update(values)

    def _stepped(self) -> list[torch.Tensor]:
        return [master for group in self._optimizer.param_groups for master in group["params"]]


def _without_parameters(group: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in group.items() if name != "params"}


def _load_state(live: dict[str, Any], values: Mapping[str, Any]) -> None:
    """In place: a framework may hold views of the moments."""
    for name, value in values.items():
        mine = live.get(name)
        if isinstance(mine, torch.Tensor) and isinstance(value, torch.Tensor) and mine.shape == value.shape:
            mine.copy_(value)
        else:
            live[name] = value
