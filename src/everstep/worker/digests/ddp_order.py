"""Keeps the sum of gradients bit-identical over a restart, for DistributedDataParallel.

Why it is needed: a ring all-reduce adds the ranks' values in an order that depends on where in its bucket an element
lies. DDP begins with buckets in order of definition and rebuilds them, once per process, in the order in which the
first backward produced gradients. So with three or more ranks the first step of a new process adds in another order
than the same step of a process that has run for a while, and the last bits differ (measured, torch 2.13, gloo).

What is done: the layout that DDP made is read after the first step and kept in the snapshot; a restarted process gets a
reducer with that layout before its first step. Nothing changes in a run that is never interrupted, not even the
numbers. Uses private names of torch; the caller catches what they raise and reports it. Called by `everstep.State`
only.
"""

import gc
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch.nn.parallel import DistributedDataParallel

Layout = tuple[tuple[int, ...], ...]
"""Buckets in the order in which they are reduced; each lists indices of parameters."""

Key = tuple[tuple[str, tuple[int, ...]], ...]
"""Names and shapes of the parameters: how a model is recognised in another process."""


class NotPinnedError(Exception):
    """This DDP's order cannot be restored; the message says why."""


def find(objects: Iterable[Any]) -> list[Any]:
    """The process's DDP instances: among the objects, inside them, or (the user kept the bare module) anywhere."""
    module = sys.modules.get("torch.nn.parallel.distributed")
    if module is None or not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return []
    ddp = module.DistributedDataParallel
    near: list[Any] = []
    for thing in objects:
        for candidate in (thing, *getattr(thing, "__dict__", {}).values()):
            if isinstance(candidate, torch.nn.Module):
                near += [m for m in candidate.modules() if isinstance(m, ddp)]
    # An instance refers to its class, so the collector can list the instances: 25 ms, once, and only in this case.
    found = near or [thing for thing in gc.get_referrers(*_with_subclasses(ddp)) if isinstance(thing, ddp)]
    return list({id(instance): instance for instance in found}.values())


def _with_subclasses(cls: type) -> list[type]:
    found: list[type] = [cls]
    sub: type
    for sub in cls.__subclasses__():
        found += _with_subclasses(sub)
    return found


class BucketOrder:
    """The layouts of some DDP instances, followed over the steps of this process."""

    def __init__(self, instances: list[Any], pinned: dict[Key, Layout] | None = None) -> None:
        """Give every instance the layout it had when the snapshot was taken. Raises NotPinnedError."""
        self._instances = [(instance, _key(instance)) for instance in instances]
        self.layouts: dict[Key, Layout] = {}
        for instance, key in self._instances:
            if pinned and key in pinned:
                _install(instance, pinned[key])
                self.layouts[key] = pinned[key]

    def follow(self) -> None:
        """After a step: let DDP rebuild now what it would rebuild in the next forward, and learn the layout.

        Now, because the snapshot of the very first step must know it as well. It is collective, as it is in DDP,
        and every rank is after the same backward.
        """
        for instance, key in self._instances:
            rebuilt = instance.reducer._rebuild_buckets()
            if rebuilt:
                instance._has_rebuilt_buckets = True
            known = self.layouts.get(key)
            if not rebuilt and (known is not None or not instance._has_rebuilt_buckets):
                continue
            layout = _read(instance)
            if known is None:
                self.layouts[key] = layout
            elif layout != known:  # another order of gradients than in the first process: keep the first one's
                _install(instance, known)


def _key(instance: "DistributedDataParallel") -> Key:
    return tuple((name, tuple(parameter.shape)) for name, parameter in instance.module.named_parameters())


def _read(instance: "DistributedDataParallel") -> Layout:
    """The layout of a reducer that has rebuilt its buckets. A logger of our own, so that DDP's counts stay its own."""
    logger = torch.distributed.Logger(instance.reducer)
    logger.set_construction_data_and_log("", [], -1, True, False, False)
    logger.set_runtime_stats_and_log()
    text = logger._get_ddp_logging_data().strs_map.get("rebuilt_per_bucket_param_indices")
    if not text:
        raise NotPinnedError("torch does not say how the buckets were rebuilt")
    return tuple(tuple(int(index) for index in bucket.split()) for bucket in text.split(","))


def _install(instance: "DistributedDataParallel", layout: Layout) -> None:
    """Replace the reducer by one with these buckets, the way DDP's own constructor makes it."""
    has_hook = "comm_hook" in instance.logger._get_ddp_logging_data().strs_map
    if instance.mixed_precision is not None or instance._use_python_reducer or (has_hook and not instance._comm_hooks):
        raise NotPinnedError("DDP with mixed_precision, a Python reducer or a built-in communication hook")
    parameters, expect_sparse = instance._build_params_for_reducer()
    if sorted(index for bucket in layout for index in bucket) != list(range(len(parameters))):
        raise NotPinnedError("other parameters need gradients than when the snapshot was taken")
    old_reducer, old_logger = instance.reducer, instance.logger
    try:
        _make_reducer(instance, parameters, expect_sparse, layout)
    except BaseException:
        if instance.reducer is not old_reducer:
            instance.reducer._remove_autograd_hooks()
        instance.reducer, instance.logger = old_reducer, old_logger
        raise
    old_reducer._remove_autograd_hooks()  # last: a DDP without hooks would train on without a sum, silently


def _make_reducer(
    instance: "DistributedDataParallel", parameters: list[torch.Tensor], expect_sparse: list[bool], layout: Layout
) -> None:
    distributed = torch.distributed
    names = instance._build_debug_param_to_name_mapping(parameters)
    buckets = [list(bucket) for bucket in reversed(layout)]  # _ddp_init_helper reverses them again
    assign = distributed._compute_bucket_assignment_by_size
    distributed._compute_bucket_assignment_by_size = lambda *_: (buckets, [instance.bucket_bytes_cap] * len(buckets))
    try:
        instance._ddp_init_helper(parameters, expect_sparse, names, instance.static_graph)
    finally:
        distributed._compute_bucket_assignment_by_size = assign
    if instance.static_graph:
        instance._set_static_graph()
    for hook, hook_state in instance._comm_hooks:
        distributed._register_comm_hook(instance.reducer, hook_state, hook)
