"""PyTorch Lightning: `fit()` goes on at the very next step, without a checkpoint of Lightning's own.

    trainer = Trainer(callbacks=[everstep.integrations.lightning.EverstepCallback()])
    trainer.fit(module)

It decides nothing: it builds the State from what the strategy has set up and from the loops' own progress, and tells it
of complete steps. A step is complete when the next batch is asked for: callbacks, validation and checkpoints that
follow a step belong to it. The train loaders are wrapped in `ResumableLoader`. Outside `everstep run` nothing changes.
"""

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from everstep.integrations import lightning_sums
from everstep.integrations.data import ResumableLoader
from everstep.worker.link.runtime import current
from everstep.worker.process.saying import say
from everstep.worker.snapshots.state import State, Stateful

# The library has two names, and classes of one are not those of the other: the one that the program has imported.
_NAMES = ("lightning.pytorch", "pytorch_lightning")
_HOME = next((name for name in _NAMES if name in sys.modules), None) or next(
    (name for name in _NAMES if importlib.util.find_spec(name.partition(".")[0])), _NAMES[-1]
)
_library: Any = importlib.import_module(_HOME)


class EverstepCallback(_library.Callback):  # type: ignore[misc]
    """`objects`: what else a step depends on, by keyword, as in `everstep.State`."""

    def __init__(self, **objects: Stateful) -> None:
        self._objects = objects
        self._state: State | None = None
        self._trainer: Any = None
        self._is_begun = False
        self._steps_done = 0  # optimizer steps of which the State has been told
        self._restored: dict[str, Any] = {}
        self._sums: dict[str, Any] = {}

    def on_fit_start(self, trainer: Any, pl_module: object) -> None:  # noqa: ANN401
        """Model and optimizers are ready, the loops have not begun."""
        if current() is None:
            return
        if self._state is not None:
            say("only the first fit() of a program is kept and resumed")
            return
        self._trainer = trainer
        parts: dict[str, Any] = {"model": trainer.strategy.model, "lightning": self}
        parts |= {f"optimizer{number}": optimizer for number, optimizer in enumerate(trainer.optimizers)}
        schedulers = [config.scheduler for config in trainer.lr_scheduler_configs]
        parts |= {f"scheduler{number}": scheduler for number, scheduler in enumerate(schedulers)}
        self._wrap_loaders(trainer)
        self._state = State(**parts, **self._objects)
        if self._state.resumed:  # newer than the checkpoint that `fit` was given
            trainer._checkpoint_connector._loaded_checkpoint = {}

    def on_train_batch_start(self, trainer: Any, *_args: object) -> None:  # noqa: ANN401
        restored, self._restored = self._restored, {}
        if restored:  # passing by a validation that has been done, the loop has counted and scheduled once more
            trainer.fit_loop.epoch_loop._batches_that_stepped = restored["batches_that_stepped"]
            for config, scheduler in zip(trainer.lr_scheduler_configs, restored["schedulers"], strict=True):
                config.scheduler.load_state_dict(scheduler)
        self._take_up_sums()

    def on_train_epoch_end(self, trainer: object, *_args: object) -> None:
        self._take_up_sums()  # the last batch was before the restart

    def _take_up_sums(self) -> None:
        sums, self._sums = self._sums, {}
        if sums:
            lightning_sums.restore_logged(self._trainer, sums["logged"])

    def on_train_end(self, trainer: Any, pl_module: object) -> None:  # noqa: ANN401
        if trainer is self._trainer:
            self._asked()

    def on_fit_end(self, trainer: Any, pl_module: object) -> None:  # noqa: ANN401
        if trainer is self._trainer and self._state is not None:
            self._state.finish()
            self._trainer = None

    def state_dict(self) -> dict[str, Any]:
        """Return what Lightning keeps beside models and optimizers. Empty for Lightning's own checkpoints."""
        trainer = self._trainer
        if trainer is None or not self._is_asked:
            return {}
        return {
            "loops": trainer.fit_loop.state_dict(),
            "batches_that_stepped": trainer.fit_loop.epoch_loop._batches_that_stepped,
            "schedulers": [config.scheduler.state_dict() for config in trainer.lr_scheduler_configs],
            "callbacks": {each.state_key: each.state_dict() for each in trainer.callbacks if each is not self},
            "sums": lightning_sums.capture(trainer),
            "precision": trainer.precision_plugin.state_dict(),
            "datamodule": trainer.datamodule.state_dict() if trainer.datamodule is not None else None,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        trainer = self._trainer
        if trainer is None or not state:
            return
        trainer.fit_loop.load_state_dict(state["loops"])
        trainer.precision_plugin.load_state_dict(state["precision"])
        if trainer.datamodule is not None:
            trainer.datamodule.load_state_dict(state["datamodule"])
        for callback in trainer.callbacks:
            if callback is not self and state["callbacks"].get(callback.state_key):
                callback.load_state_dict(state["callbacks"][callback.state_key])
        self._restored, self._sums = dict(state), state.get("sums", {})
        if self._sums:
            lightning_sums.restore_metrics(trainer, self._sums["metrics"])
        self._steps_done = trainer.global_step

    _is_asked = False

    def _asked(self) -> None:
        """The loop asks for a batch, or for none any more: what was done until now is complete."""
        if self._state is None or self._trainer is None:
            return
        if not self._is_begun:
            self._is_begun = True
            self._state.begin()
        elif self._trainer.global_step > self._steps_done:
            self._steps_done = self._trainer.global_step
            self._is_asked = True
            self._state.complete_step()
            self._is_asked = False

    def _wrap_loaders(self, trainer: Any) -> None:  # noqa: ANN401
        process: Callable[[Any], Any] = trainer.strategy.process_dataloader

        def processed(loader: object) -> object:
            ready = process(loader)
            return _Asking(ready, self._asked) if trainer.training else ready

        trainer.strategy.process_dataloader = processed


class _Asking(ResumableLoader):
    """Says when a batch is asked for."""

    def __init__(self, loader: object, asked: Callable[[], None]) -> None:
        super().__init__(loader)
        self._asked = asked

    def __iter__(self) -> Iterator[Any]:
        self.leave_epoch()  # before it is asked: the step that is complete then is the last one of the epoch
        batches = super().__iter__()
        while True:
            self._asked()
            try:
                batch = next(batches)
            except StopIteration:
                return
            yield batch
