"""DeepSpeed: one State of an engine, with ZeRO or without.

    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    data = ResumableLoader(loader)
    state = everstep.integrations.deepspeed.state_of(engine, data=data)
    for step, batch in zip(state.steps(10_000), data.forever()):
        engine.backward(engine(batch))
        engine.step()

Called by programs. A step is one of the optimizer: with gradient accumulation it takes several micro-batches.
"""

from typing import Any

from everstep.worker.snapshots.state import State, Stateful


def state_of(engine: Any, **objects: Stateful) -> State:  # noqa: ANN401 - a deepspeed.DeepSpeedEngine
    """Weights, optimizer, scheduler, loss scale and counts of the engine: this rank's part; and `objects`.

    Raises TypeError for a part of DeepSpeed that cannot be kept.
    """
    return State(engine=engine, **objects)
