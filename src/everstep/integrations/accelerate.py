"""Accelerate: one State of all that `accelerator.prepare` has made.

    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    data = ResumableLoader(loader)
    state = everstep.integrations.accelerate.state_of(accelerator, data=data)
    state.begin()
    for _ in range(data.epoch, num_epochs):
        for batch in data:
            with accelerator.accumulate(model):
                ...
            if accelerator.sync_gradients:
                state.complete_step()

Called by programs. A step is one of the optimizer: gradients that are still being accumulated are in no snapshot.
"""

from typing import Any

from everstep.worker.snapshots.state import State, Stateful


def state_of(accelerator: Any, **objects: Stateful) -> State:  # noqa: ANN401 - an accelerate.Accelerator
    """Models, optimizers, schedulers, the scaler and what `register_for_checkpointing` was given; and `objects`.

    Raises TypeError for Megatron-LM, and for a part of DeepSpeed that cannot be kept.
    """
    kind = str(getattr(accelerator.distributed_type, "value", accelerator.distributed_type))
    if kind == "MEGATRON_LM":
        raise TypeError("state_of(): Megatron-LM through Accelerate was never restored; use DeepSpeed, DDP or FSDP2")
    parts: dict[str, Any] = {}
    for name, things in {
        "model": accelerator._models,
        "optimizer": [getattr(each, "optimizer", each) for each in accelerator._optimizers],
        "scheduler": accelerator._schedulers,
        "custom": accelerator._custom_objects,
    }.items():
        parts |= {f"{name}{number}": thing for number, thing in enumerate(things)}
    if accelerator.scaler is not None:
        parts["scaler"] = accelerator.scaler
    return State(**parts, **objects)
