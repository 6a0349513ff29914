"""torchtitan's `Trainer`: `train()` goes on at the very next step, with checkpoints of its own or without.

    trainer = everstep.integrations.torchtitan.attach(config.build())
    trainer.train()

It decides nothing: it builds the State from what the Trainer has prepared and tells it of complete steps. A step is
complete when the Trainer asks whether to go on: what it saves and validates after a step belongs to the step. Its steps
count from 1, those of State from 0. Each rank keeps its own shards. Outside `everstep run` nothing is changed.
"""

from typing import Any, TypeVar

from everstep.integrations.data import ResumableLoader
from everstep.worker.link.runtime import Runtime, current
from everstep.worker.snapshots.state import State, Stateful

_T = TypeVar("_T")


def attach(trainer: _T, **objects: Stateful) -> _T:
    """Return the same trainer, with Everstep attached if it runs the job. `objects`: what else a step depends on, by
    keyword, as in `everstep.State`."""
    runtime = current()
    if runtime is not None:
        _Attachment(trainer, objects, runtime)
    return trainer


class _Attachment:
    """One Trainer and its State. Methods are replaced on these objects only."""

    def __init__(self, trainer: Any, objects: dict[str, Stateful], runtime: Runtime) -> None:  # noqa: ANN401
        self._trainer, self._objects, self._runtime = trainer, objects, runtime
        self._state: State | None = None
        self._is_begun = False
        self._load, self._goes_on = trainer.checkpointer.load, trainer.should_continue_training
        trainer.dataloader = ResumableLoader(trainer.dataloader)
        trainer.checkpointer.load, trainer.should_continue_training = self._load_and_restore, self._next

    def _load_and_restore(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        """In place of the checkpointer's `load`. A snapshot goes before a checkpoint: it is newer, or begun from it."""
        loaded = self._load(*args, **kwargs) if self._runtime.resume_step is None else True
        trainer = self._trainer
        parts: dict[str, Any] = {f"model{number}": part for number, part in enumerate(trainer.model_parts)}
        parts |= {f"optimizer{number}": each for number, each in enumerate(trainer.optimizers.optimizers)}
        parts |= {"scheduler": trainer.lr_schedulers, "data": trainer.dataloader, "trainer": trainer}
        self._state = State(**parts, **self._objects)
        return loaded

    def _next(self) -> bool:
        """In place of `should_continue_training`, which is asked before each step and after the last one."""
        state = self._state
        if state is not None and not self._is_begun:
            self._is_begun = True
            state.begin()
        elif state is not None:
            state.complete_step(self._trainer.step - 1)
        goes_on = bool(self._goes_on())
        if state is not None and not goes_on:
            state.finish()
        return goes_on
