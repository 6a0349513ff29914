"""Values that Lightning adds up over an epoch: those of `self.log(on_epoch=True)`, and torchmetrics. No checkpoint has
them.

Called by the callback (lightning.py), which decides when. Values that are only logged per step are not kept: the next
step has new ones.
"""

import sys
from collections.abc import Iterable, Mapping
from typing import Any

_META = (
    *("fx", "name", "prog_bar", "logger", "on_step", "on_epoch", "enable_graph"),
    *("add_dataloader_idx", "dataloader_idx", "metric_attribute"),
)


def capture(trainer: Any) -> dict[str, Any]:  # noqa: ANN401 - a Trainer
    """Return the values and metrics of the epoch so far, on this rank."""
    logged = {}
    for key, result in trainer.fit_loop.epoch_loop._results.items():
        if result.meta.on_epoch and result.is_tensor:
            logged[key] = {
                "meta": {name: getattr(result.meta, name) for name in _META},
                "reduce": result.meta.reduce_fx.__name__,
                "sync": (result.meta.sync.should, result.meta.sync.rank_zero_only),
                "value": result.value,
                "size": getattr(result, "cumulated_batch_size", None),
            }
    metrics = {
        name: {"count": metric._update_count, "values": {each: getattr(metric, each) for each in metric._defaults}}
        for name, metric in _metrics(trainer)
    }
    return {"logged": logged, "metrics": metrics}


def restore_metrics(trainer: Any, kept: Mapping[str, Any]) -> None:  # noqa: ANN401
    """At once: they belong to the module."""
    for name, metric in _metrics(trainer):
        if name in kept:
            for each, value in kept[name]["values"].items():
                setattr(metric, each, value)
            metric._update_count, metric._computed = kept[name]["count"], None


def restore_logged(trainer: Any, kept: Mapping[str, Any]) -> None:  # noqa: ANN401
    """When the epoch goes on, or ends: what starts a loop empties them, and so does the first batch after it."""
    results = trainer.fit_loop.epoch_loop._results
    library: Any = sys.modules[type(results).__module__]
    import torch

    for key, each in kept.items():
        if key in results:
            continue
        meta = library._Metadata(**each["meta"], reduce_fx=getattr(torch, each["reduce"]))
        should, rank_zero_only = each["sync"]
        reduce = trainer.strategy.reduce  # as `LightningModule.log` gives it: the two are compared
        meta.sync = library._Sync(_should=should, fn=reduce, _group=None, rank_zero_only=rank_zero_only)
        result = library._ResultMetric(meta, True)
        result.value, result._update_count = each["value"], 1
        if each["size"] is not None:
            result.cumulated_batch_size = each["size"]
        results[key] = result
    if trainer._logger_connector._first_loop_iter:
        trainer._logger_connector._first_loop_iter = False  # else the first value of each name empties its sum


def _metrics(trainer: Any) -> Iterable[tuple[str, Any]]:  # noqa: ANN401
    """The torchmetrics of the module, by name. None where the library is not there."""
    library = sys.modules.get("torchmetrics")
    if library is None:
        return
    for name, module in trainer.lightning_module.named_modules():
        if isinstance(module, library.Metric):
            yield name, module
