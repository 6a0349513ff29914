"""Random generators that frameworks keep by name, beside those of torch: Megatron-core, DeepSpeed, Transformer Engine.

Dropout in attention and in tensor-parallel regions draws from them. A tracker exists where the program's framework has
made one; none is imported, nor made, here. Called by `random_state`.
"""

import sys
from collections.abc import Iterator, MutableMapping
from typing import Any

import torch

_TRACKERS = {
    "megatron": "megatron.core.tensor_parallel.random",
    "deepspeed": "deepspeed.runtime.activation_checkpointing.checkpointing",
}
_TRANSFORMER_ENGINE = "transformer_engine.pytorch.distributed"


def capture() -> dict[str, dict[str, torch.Tensor]]:
    """State of each generator by framework and name; on the CPU. Empty without any."""
    states = {which: {name: _told(state) for name, state in live.items()} for which, live, _ in _alive()}
    return {which: named for which, named in states.items() if named}


def restore(states: dict[str, dict[str, torch.Tensor]]) -> None:
    """Raises RuntimeError for a framework's generators that this process does not have."""
    alive = {which: (live, tracker) for which, live, tracker in _alive()}
    for which, named in states.items():
        if which not in alive:
            raise RuntimeError(f"{which} has no named random generators here: it had {', '.join(named)}")
        live, tracker = alive[which]
        for name, state in named.items():
            if isinstance(live.get(name), torch.Generator):
                live[name].set_state(state)  # the same object: a CUDA graph may draw from it
            else:
                live[name] = state
        if tracker is not None:
            tracker.set_states(live)


def _alive() -> Iterator[tuple[str, MutableMapping[str, Any], Any]]:
    """Framework, its states by name, and the tracker that is given them; None: the mapping is the tracker's own."""
    for which, module in _TRACKERS.items():
        tracker = getattr(sys.modules.get(module), "_CUDA_RNG_STATE_TRACKER", None)  # asked for, it would be made
        if tracker is not None:
            yield which, tracker.get_states(), tracker
    engine = sys.modules.get(_TRANSFORMER_ENGINE)
    if engine is not None and hasattr(engine, "get_all_rng_states"):
        yield "transformer_engine", engine.get_all_rng_states(), None


def _told(state: Any) -> torch.Tensor:  # noqa: ANN401 - a tensor, or a generator that CUDA graphs know
    told: torch.Tensor = state.get_state() if isinstance(state, torch.Generator) else state
    return told.cpu()
