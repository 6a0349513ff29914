"""Megatron-core: one State of model chunks, optimizer and scheduler.

    model, optimizer, opt_param_scheduler = setup_model_and_optimizer(...)
    state = everstep.integrations.megatron.state_of(model, optimizer, opt_param_scheduler, data=data)
    for step, batch in zip(state.steps(10_000), data.forever()):
        ...

Called by programs. Each rank keeps its own shards; nothing is gathered. Named random generators need no line.
"""

from collections.abc import Sequence
from typing import Any

from everstep.worker.snapshots.state import State, Stateful


def state_of(model: Any, optimizer: Any, scheduler: Any = None, **objects: Stateful) -> State:  # noqa: ANN401
    """`model`: a module, or the list of chunks that `get_model` returns. `optimizer`: of `get_megatron_optimizer`.

    Raises TypeError for an optimizer that cannot be kept.
    """
    chunks = list(model) if isinstance(model, Sequence) else [model]
    parts: dict[str, Any] = {f"model{number}": chunk for number, chunk in enumerate(chunks)}
    parts["optimizer"] = optimizer
    if scheduler is not None:
        parts["scheduler"] = scheduler
    return State(**parts, **objects)
