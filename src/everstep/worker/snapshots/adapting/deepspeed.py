"""DeepSpeed: this rank's part of an engine, as its `save_checkpoint` would write it, without files.

ZeRO 1 and 2 keep fp32 partitions that no module has; in ZeRO 3 the module's parameters are empty between steps and each
one's `ds_tensor` is this rank's part of it. DeepSpeed's own `load_state_dict` takes the states of all ranks.
"""

from collections.abc import Mapping
from typing import Any

import torch

from everstep.worker.snapshots.adapting.inner import Inner
from everstep.worker.snapshots.adapting.kinds import names_of, owner_of

_ENGINE = "deepspeed.runtime.engine.DeepSpeedEngine"
_OPTIMIZER = "deepspeed.runtime.base_optimizer.DeepSpeedOptimizer"
_ZERO_3 = "deepspeed.runtime.zero.stage3.DeepSpeedZeroOptimizer_Stage3"
_KNOWN = {
    _ZERO_3,
    "deepspeed.runtime.zero.stage_1_and_2.DeepSpeedZeroOptimizer",
    "deepspeed.runtime.bf16_optimizer.BF16_Optimizer",
    "deepspeed.runtime.fp16.fused_optimizer.FP16_Optimizer",
    "deepspeed.runtime.fp16.unfused_optimizer.FP16_UnfusedOptimizer",
}
_SCALERS = ("loss_scaler", "loss_scale_config")
"""Where one of them keeps its loss scale, and what decides when that changes."""

_UNTRIED = ("deepspeed.ops.adam.cpu_adam.", "deepspeed.runtime.fp16.onebit.")
"""Optimizers that keep more than their state: bias corrections multiplied up in C++, errors of rounding."""

_COUNTS = ("global_steps", "global_samples", "skipped_steps", "micro_steps")
_OTHERS = ("random_ltd_enabled", "curriculum_enabled_legacy", "curriculum_learning_enabled", "amp_enabled")
"""Methods of an engine that say that it keeps more than is kept here."""


def adapt(thing: object) -> Any | None:  # noqa: ANN401
    """Stand-in for it; None: it is not DeepSpeed's. Raises TypeError for what cannot be kept."""
    names = names_of(thing)
    if names[0].startswith(_UNTRIED):
        raise _refused(names[0])
    if _ENGINE in names:
        return Engine(thing)
    if is_optimizer(thing):
        return Partitions(thing)
    if isinstance(thing, torch.nn.Module) and any(hasattr(each, "ds_tensor") for each in thing.parameters()):
        return Shards(thing)
    owner = owner_of(thing, "deepspeed", is_optimizer)
    return Partitions(owner) if owner is not None else None


def is_optimizer(thing: object) -> bool:
    return _OPTIMIZER in names_of(thing)


class Partitions:
    """fp32 partitions, moments and loss scale of one of DeepSpeed's optimizers."""

    is_comparable = True  # after a restore, with what was restored

    def __init__(self, optimizer: Any) -> None:  # noqa: ANN401
        name = names_of(optimizer)[0]
        if name not in _KNOWN:
            raise _refused(name)
        for option in ("swap_optimizer", "torch_autocast_gradscaler"):
            if getattr(optimizer, option, None):
                raise _refused(f"{name} with {option}")
        self._optimizer = optimizer
        if names_of(optimizer.optimizer)[0].startswith(_UNTRIED):
            raise _refused(names_of(optimizer.optimizer)[0])
        if self._scaler() is None and "fp16" in name:
            raise _refused(f"{name} of a version that keeps its loss scale elsewhere")
        # ZeRO 3 gives its optimizer the parameters for the time of a step only
        masters = (lambda: list(optimizer.fp32_partitioned_groups_flat)) if name == _ZERO_3 else None
        self._inner = Inner(optimizer.optimizer, masters)

    def state_dict(self) -> dict[str, Any]:
        scaler = self._scaler()
        scale = {} if scaler is None else dict(vars(scaler))
        return {"inner": self._inner.state_dict(), "scaler": scale}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._inner.load_state_dict(state["inner"])
        if state["scaler"]:
            vars(self._scaler()).update(state["scaler"])

    def _scaler(self) -> Any | None:  # noqa: ANN401 - asked for each time: loading a checkpoint puts another in place
        found = (getattr(self._optimizer, name, None) for name in _SCALERS)
        return next((each for each in found if each is not None), None)


class Shards:
    """Module under ZeRO 3: of each parameter this rank's part, and the whole of those that are never parted."""

    is_comparable = True  # after a restore, with what was restored

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module
        for parameter in self._parameters().values():
            if getattr(parameter, "ds_secondary_tensor", None) is not None or not parameter.ds_tensor.numel():
                raise _refused("ZeRO++ or NVMe offload of parameters")

    def state_dict(self) -> dict[str, Any]:
        parameters = self._parameters()
        return {
            "shards": {name: each.ds_tensor.detach() for name, each in parameters.items()},
            "whole": {name: each.detach() for name, each in parameters.items() if each.numel()},
            "buffers": dict(self._module.named_buffers()),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        parameters, buffers = self._parameters(), dict(self._module.named_buffers())
        with torch.no_grad():
            for name, each in parameters.items():
                each.ds_tensor.detach().copy_(state["shards"][name])
                if each.numel() and name in state["whole"]:
                    each.detach().copy_(state["whole"][name])
                elif each.numel():
                    each.partition(has_been_updated=False)  # gathered again when it is needed
            for name, buffer in buffers.items():
                buffer.copy_(state["buffers"][name])

    def comparable(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Return the part of a state dict that a restore gives back at once: whole parameters are gathered when they
        are needed."""
        return {name: value for name, value in state.items() if name != "whole"}

    def _parameters(self) -> dict[str, Any]:
        return dict(self._module.named_parameters())


class Engine:
    """Weights, optimizer, scheduler and counts of a DeepSpeedEngine."""

    is_comparable = True  # after a restore, with what was restored

    def __init__(self, engine: Any) -> None:  # noqa: ANN401
        name = names_of(engine)[0]
        more = [method for method in _OTHERS if getattr(engine, method, bool)()]
        if name != _ENGINE or more or getattr(engine, "has_moe_layers", False):
            raise _refused(", ".join([name, *more]))
        self._engine = engine
        self._module = adapt(engine.module) or engine.module
        optimizer = engine.optimizer
        self._optimizer = adapt(optimizer) or optimizer

    def state_dict(self) -> dict[str, Any]:
        """Raises RuntimeError between two steps of the optimizer: the gradients that were summed are not kept."""
        if _is_summing(self._engine):
            raise RuntimeError(
                "DeepSpeed sums the gradients of several micro-batches, which are not kept: "
                "count a step of State for each step of the optimizer"
            )
        return self.held()

    def held(self) -> dict[str, Any]:
        """Return the state whatever the engine says of gradients: one that has just been loaded has none."""
        engine = self._engine
        return {
            "module": self._module.state_dict(),
            "optimizer": self._optimizer.state_dict() if self._optimizer is not None else None,
            "scheduler": engine.lr_scheduler.state_dict() if engine.lr_scheduler is not None else None,
            "counts": {name: getattr(engine, name) for name in _COUNTS},
        }

    def comparable(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """See `Shards`."""
        if not isinstance(self._module, Shards):
            return dict(state)
        return {**state, "module": self._module.comparable(state["module"])}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._module.load_state_dict(state["module"])
        if self._optimizer is not None:
            self._optimizer.load_state_dict(state["optimizer"])
        if self._engine.lr_scheduler is not None:
            self._engine.lr_scheduler.load_state_dict(state["scheduler"])
        for name, value in state["counts"].items():
            setattr(self._engine, name, value)


def _is_summing(engine: Any) -> bool:  # noqa: ANN401
    boundary = engine._is_gradient_accumulation_boundary  # where the program says it itself, as Accelerate does
    if boundary is not None:
        return not boundary
    if not getattr(engine, "managed_gradient_accumulation", lambda: True)():  # each of its steps is the optimizer's
        return engine._unmanaged_backward_count > 0  # type: ignore[no-any-return]
    return bool(engine.micro_steps % engine.gradient_accumulation_steps())


def _refused(what: str) -> TypeError:
    return TypeError(
        f"everstep.State cannot keep this part of DeepSpeed: {what}: its restore was never tried. "
        "Leave it out of State, and let DeepSpeed's save_checkpoint and load_checkpoint resume the run"
    )
