"""Hugging Face `Trainer`: `train()` goes on at the very next step, without a checkpoint of the Trainer's own.

    trainer = everstep.integrations.transformers.attach(Trainer(...))
    trainer.train()

It decides nothing: it builds the State from what the Trainer has prepared, tells it of complete steps, and makes the
Trainer resume as it does from a checkpoint (its count of steps, its skipping of batches). A step is complete when the
Trainer asks for the next batch: what it logs, evaluates and saves after a step belongs to the step. Step numbers are
the Trainer's `global_step` less one. Outside `everstep run` nothing is changed. Needs transformers 5.3.
"""

import pickle
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments, __version__
from transformers import trainer as trainer_module
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_callback import ExportableState

from everstep.integrations.pulls import Random, watch_pulls
from everstep.worker.digests import random_state
from everstep.worker.link.runtime import Runtime, current
from everstep.worker.process.saying import say
from everstep.worker.snapshots.state import State, Stateful

_T = TypeVar("_T")
_LOADERS = ("_load_from_checkpoint", "_load_optimizer_and_scheduler", "_load_scaler", "_load_rng_state")
_FIELDS = (
    "epoch",
    "global_step",
    "num_input_tokens_seen",
    "total_flos",
    "best_metric",
    "best_global_step",
    "best_model_checkpoint",
)
"""Of TrainerState: what steps change. The rest follows from the program's arguments."""

_SUMS = (
    "_tr_loss",
    "_total_loss_scalar",
    "_globalstep_last_logged",
    "_initial_global_step",
    "_initial_num_input_tokens_seen",
    "current_flos",
)
"""Of the Trainer: what it adds up over steps, and from which step on (not every version has the second)."""

_SUMMARY = {"train_runtime", "train_loss", "total_flos"}
"""What only the last log of a training has."""


def attach(trainer: _T, **objects: Stateful) -> _T:
    """Return the same trainer, with Everstep attached if it runs the job. `objects`: what else a step depends on, by
    keyword, as in `everstep.State`.

    Raises TypeError for a version of transformers that is too old. A part of DeepSpeed that cannot be kept raises it
    when training begins.
    """
    if not hasattr(trainer_module.Trainer, "_finalize_training"):
        raise TypeError(f"attach(): transformers {__version__} keeps its sums out of reach; use 5.3 or newer")
    if current() is not None:
        _Attachment(trainer, objects)
    return trainer


class _Attachment(TrainerCallback):  # type: ignore[misc]
    """One Trainer and its State. Methods of the Trainer are replaced on this one object only."""

    def __init__(self, trainer: Any, objects: dict[str, Stateful]) -> None:  # noqa: ANN401
        self._trainer = trainer
        self._objects = objects
        self._state: State | None = None
        self._is_active = False
        self._is_pending = False  # a step is done, and what the Trainer does after it may not be
        self._folder: str | None = None
        self._delivered = 0
        self._began: Random = {}
        self._now: Random | None = None
        self._restored: dict[str, Any] = {}
        self._log = (-1, b"")
        self._began_s: float | None = None
        self._is_resumed = self._is_summed = False
        self._train, self._get_batches = trainer.train, trainer.get_batch_samples
        trainer.train, trainer.get_batch_samples = self._resume_and_train, self._next_batches
        for name in _LOADERS:
            setattr(trainer, name, self._unless_ours(getattr(trainer, name)))
        trainer.add_callback(self)

    def on_train_begin(self, _args: TrainingArguments, _state: object, _control: object, **_kwargs: object) -> None:
        if not self._is_active:
            return
        trainer = self._trainer
        self._began_s = time.time()
        trainer.state.compute_steps(
            trainer.args, trainer.state.max_steps
        )  # fractions, which our checkpoint had as such
        self._pulls = watch_pulls(trainer.callback_handler.train_dataloader)
        parts: dict[str, Any] = {
            "model": trainer.model_wrapped,
            "optimizer": getattr(trainer.optimizer, "optimizer", trainer.optimizer),
            "scheduler": trainer.lr_scheduler,
            "scaler": getattr(trainer.accelerator, "scaler", None),
            "trainer": self,
        }
        self._state = State(**{name: part for name, part in parts.items() if part is not None}, **self._objects)

    def on_epoch_begin(self, _args: TrainingArguments, _state: object, _control: object, **_kwargs: object) -> None:
        if not self._is_active or self._state is None:
            return
        is_first = not self._began
        if is_first:
            self._state.begin()
        if is_first and self._delivered:
            self._now = random_state.capture_host()
            self._began = self._restored["began"]
            random_state.restore(self._began)
            if self._pulls is not None:  # the Trainer skips what was read, and so pulls it again
                self._pulls.replay(0, self._restored["pulled"], self._restored["fetches"], self._now)
            return
        self._delivered = self._skipped() if is_first else 0
        self._began = random_state.capture_host()
        self._complete()

    def _skipped(self) -> int:
        """Batches that the Trainer leaves out because of a checkpoint of its own."""
        trainer, loader = self._trainer, self._trainer.callback_handler.train_dataloader
        if trainer.state.global_step == 0 or trainer.args.ignore_data_skip or self._pulls is None:
            return 0
        at_once = trainer.args.gradient_accumulation_steps
        return int(trainer.state.global_step % -(-len(loader) // at_once)) * int(at_once)

    def on_step_begin(self, _args: TrainingArguments, _state: object, _control: object, **_kwargs: object) -> None:
        """By now the folder has been read: one that is killed leaves none."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def on_step_end(self, _args: TrainingArguments, _state: object, _control: object, **_kwargs: object) -> None:
        self._is_pending = self._is_active

    def on_train_end(self, _args: TrainingArguments, _state: object, _control: object, **_kwargs: object) -> None:
        if self._is_active and self._state is not None:
            self._is_summed = True
            self._complete()
            self._state.finish()
        self._is_active = False

    def state_dict(self) -> dict[str, Any]:
        trainer = self._trainer
        history = trainer.state.log_history
        if self._log[0] != len(history):  # it grows, and is pickled in every step
            # Without the summary of the whole: a program that is restarted at its end writes it again.
            self._log = len(history), pickle.dumps([log for log in history if not log.keys() >= _SUMMARY])
        ahead = self._pulls.ahead(self._delivered) if self._pulls is not None else {}
        return {
            "fields": {name: getattr(trainer.state, name) for name in _FIELDS},
            "log": self._log[1],
            "callbacks": [callback.state()["attributes"] for callback in self._callbacks()],
            "is_over": trainer.control.should_training_stop,
            "sums": self._sums(),
            "elapsed_s": time.time() - self._began_s if self._began_s is not None else 0.0,
            "delivered": self._delivered,
            "began": self._began,
            **(ahead or {"pulled": 0, "fetches": {}}),
        }

    def _sums(self) -> dict[str, Any]:
        sums = {name: getattr(self._trainer, name) for name in _SUMS if hasattr(self._trainer, name)}
        if self._is_summed:  # the Trainer has added it to the whole, and would again
            sums["_tr_loss"] = sums["_tr_loss"] * 0
        return sums

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        trainer = self._trainer
        self._began_s, self._is_resumed = time.time() - state.get("elapsed_s", 0.0), True
        for name, value in state["fields"].items():
            setattr(trainer.state, name, value)
        trainer.state.log_history = pickle.loads(state["log"])
        for callback, attributes in zip(self._callbacks(), state["callbacks"], strict=True):
            vars(callback).update(attributes)
        for name, value in state["sums"].items():
            setattr(trainer, name, value)
        self._restored = dict(state)
        self._delivered = state["delivered"]

    def _callbacks(self) -> list[Any]:
        return [each for each in self._trainer.callback_handler.callbacks if isinstance(each, ExportableState)]

    def _complete(self) -> None:
        if self._is_pending and self._state is not None:
            self._is_pending = False
            self._state.complete_step(self._trainer.state.global_step - 1)

    def _resume_and_train(self, resume_from_checkpoint: object = None, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        """In place of `train`. A snapshot goes before the program's checkpoint: it is newer, or begun from it."""
        runtime = current()
        if self._state is not None or runtime is None:
            say("only the first train() of a program is kept and resumed")
            return self._train(resume_from_checkpoint, *args, **kwargs)
        self._is_active = True
        begins_after = _begins_after(runtime)
        if begins_after is None:
            return self._train(resume_from_checkpoint, *args, **kwargs)
        with self._speed_of_the_whole(), self._engine_as_it_is():
            return self._train_on(begins_after, *args, **kwargs)

    def _train_on(self, begins_after: int, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        with tempfile.TemporaryDirectory(
            prefix="everstep-", ignore_cleanup_errors=True
        ) as folder:  # only the number: the rest is in memory
            ours = self._trainer.args
            steps = {name: getattr(ours, name) for name in ("logging_steps", "eval_steps", "save_steps")}
            size = ours.per_device_train_batch_size * max(1, ours.n_gpu)
            exported = [*self._callbacks(), self._trainer.control]  # its own saves look for them
            state = TrainerState(
                global_step=begins_after + 1, train_batch_size=size, stateful_callbacks=exported, **steps
            )
            state.save_to_json(str(Path(folder, TRAINER_STATE_NAME)))
            self._folder = folder
            return self._train(folder, *args, **kwargs)

    @contextmanager
    def _speed_of_the_whole(self) -> Iterator[None]:
        """Times and speeds of training count from its beginning, less the time that was lost: so do the steps."""
        measure = trainer_module.speed_metrics

        def measuring(split: str, start_time: float, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
            begin = self._began_s if split == "train" and self._is_resumed and self._began_s else start_time
            return measure(split, begin, *args, **kwargs)

        trainer_module.speed_metrics = measuring
        try:
            yield
        finally:
            trainer_module.speed_metrics = measure

    @contextmanager
    def _engine_as_it_is(self) -> Iterator[None]:
        """DeepSpeed's engine is not asked to load the folder, which has a number in it only."""
        load = trainer_module.deepspeed_load_checkpoint
        trainer_module.deepspeed_load_checkpoint = self._unless_ours(load, at=1)
        try:
            yield
        finally:
            trainer_module.deepspeed_load_checkpoint = load

    def _unless_ours(self, load: Callable[..., Any], at: int = 0) -> Callable[..., Any]:
        """`load`, but for our folder. `at`: which argument is the folder."""

        def loading(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as the Trainer has it
            is_ours = self._folder is not None and args[at : at + 1] == (self._folder,)
            return None if is_ours else load(*args, **kwargs)

        return loading

    def _next_batches(self, *args: Any, **kwargs: Any) -> tuple[list[Any], Any]:  # noqa: ANN401
        """In place of `get_batch_samples`: what the Trainer asks for when a step and all that belongs to it is done."""
        if not self._is_active:
            return self._get_batches(*args, **kwargs)  # type: ignore[no-any-return]
        self._complete()
        control: TrainerControl = self._trainer.control
        if self._restored.get("is_over"):  # it ended, and the program was at what comes after
            control.should_training_stop = True
            return [], None
        batches, num_items = self._get_batches(*args, **kwargs)
        self._delivered += len(batches)
        if self._now is not None:
            if self._pulls is not None:
                self._pulls.settle()
            else:
                random_state.restore(self._now)
            self._now = None
        return batches, num_items


def _begins_after(runtime: Runtime) -> int | None:
    """The step whose state the State will restore. The Trainer wants to know before it has objects to restore."""
    if runtime.resume_step is not None or not runtime.init_from:
        return runtime.resume_step
    from everstep.checkpoint.persist.store.files import locate, read_manifest

    manifest = read_manifest(*locate(runtime.init_from))
    return manifest.step if manifest is not None else None  # a foreign checkpoint: weights, to begin with
