"""Megatron-core: the fp32 shards and moments that its optimizers leave out of their `state_dict`.

`DistributedOptimizer.state_dict()` has neither, by design, and its `load_state_dict` fills the moments with whatever
lies in memory. The optimizer inside each of them steps exactly this rank's masters, so these are kept.
"""

from collections.abc import Mapping
from typing import Any

from everstep.worker.snapshots.adapting.inner import Inner
from everstep.worker.snapshots.adapting.kinds import names_of, owner_of

_OPTIMIZER = "megatron.core.optimizer.optimizer.MegatronOptimizer"
_CHAINED = "megatron.core.optimizer.optimizer.ChainedOptimizer"
_OPTIONS = (
    "use_precision_aware_optimizer",
    "use_megatron_fsdp",
    "fp8_param_gather",
    "reuse_grad_buf_for_mxfp8_param_ag",
    "overlap_param_gather_with_optimizer_step",
)
"""Of optimizer or DistributedDataParallel: masters or weights are elsewhere, or otherwise made."""

_KNOWN = {
    "megatron.core.optimizer.distrib_optimizer.DistributedOptimizer",
    "megatron.core.optimizer.optimizer.Float16OptimizerWithFloat16Params",
    "megatron.core.optimizer.optimizer.FP32Optimizer",
}


def adapt(thing: object) -> Any | None:  # noqa: ANN401
    """Stand-in for it; None: it is not Megatron's. Raises TypeError for what cannot be kept."""
    if is_optimizer(thing):
        return Masters(thing)
    owner = owner_of(thing, "megatron.core", _is_single)
    return Masters(owner) if owner is not None else None


def is_optimizer(thing: object) -> bool:
    return _OPTIMIZER in names_of(thing)


def _is_single(thing: object) -> bool:
    names = names_of(thing)
    return _OPTIMIZER in names and _CHAINED not in names


class Masters:
    """The tensors that one of Megatron's optimizers, or each of a chain, steps on this rank; and its loss scale."""

    is_comparable = True  # after a restore, with what was restored

    def __init__(self, optimizer: Any) -> None:  # noqa: ANN401
        parts = optimizer.chained_optimizers if _CHAINED in names_of(optimizer) else [optimizer]
        self._parts = [part for part in parts if not getattr(part, "is_stub_optimizer", False)]
        for part in self._parts:
            _check(part)
        self._inners = [Inner(part.optimizer) for part in self._parts]

    def state_dict(self) -> dict[str, Any]:
        scalers = [getattr(part, "grad_scaler", None) for part in self._parts]
        return {
            "inners": [inner.state_dict() for inner in self._inners],
            "scalers": [scaler.state_dict() if scaler is not None else None for scaler in scalers],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for inner, saved in zip(self._inners, state["inners"], strict=True):
            inner.load_state_dict(saved)
        for part, scaler in zip(self._parts, state["scalers"], strict=True):
            if scaler:
                part.grad_scaler.load_state_dict(scaler)
        chunks = {id(chunk): chunk for part in self._parts for chunk in getattr(part, "model_chunks", ())}
        for chunk in chunks.values():
            if getattr(chunk.ddp_config, "overlap_param_gather", False):
                _gather_once(chunk)


def _gather_once(chunk: Any) -> None:  # noqa: ANN401 - Megatron's DistributedDataParallel
    """Where weights are gathered in the next step's forward, a snapshot has only this rank's part of them up to date,
    and training programs leave the first gathering of a process out: make up for it when the chunk is first used."""

    def gather(*_: object) -> None:
        handle.remove()
        chunk.start_param_sync(force_sync=True)

    handle = chunk.register_forward_pre_hook(gather, prepend=True)


def _check(optimizer: Any) -> None:  # noqa: ANN401
    name, inner = names_of(optimizer)[0], type(getattr(optimizer, "optimizer", None)).__name__
    owners = getattr(optimizer, "config", None), getattr(optimizer, "ddp_config", None)
    more = [option for option in _OPTIONS if any(getattr(owner, option, False) for owner in owners)]
    if name not in _KNOWN or inner == "HybridDeviceOptimizer" or more:
        raise _refused(", ".join([name, inner, *more]))


def _refused(what: str) -> TypeError:
    return TypeError(
        f"everstep.State cannot keep this part of Megatron-core: {what}: its restore was never tried. "
        "Leave it out of State, and let dist_checkpointing resume the run"
    )
