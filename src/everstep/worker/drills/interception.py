"""Stands between the program and its collectives: calls of `torch.distributed`, and DDP's forward.

The methods of `ProcessGroup` are replaced, so that it does not matter by which name the program calls them. DDP reduces
its gradients in C++ and cannot be seen there: its class's forward is replaced as well, because what it decides there
(synchronise in the coming backward or not) is decided in Python. Hooks would lie in the module itself, and a program
that pickles it would fail. Collectives of compiled graphs go neither way and are not seen.
"""

import dataclasses
import functools
import time
from collections.abc import Callable
from typing import Any, Protocol

from everstep.worker.drills import PATIENCE_S, DrillRefusal, loaded

COLLECTIVES = (
    "allreduce", "allreduce_coalesced", "broadcast", "reduce", "allgather", "_allgather_base", "allgather_coalesced",
    "allgather_into_tensor_coalesced", "all_gather_single", "all_gather_single_coalesced", "gather", "scatter",
    "reduce_scatter", "_reduce_scatter_base", "reduce_scatter_single", "reduce_scatter_single_coalesced",
    "reduce_scatter_tensor_coalesced", "alltoall", "alltoall_base", "all_to_all_single", "barrier",
)  # fmt: skip
_C10D = "torch.distributed.distributed_c10d"


@dataclasses.dataclass(frozen=True, slots=True)
class Call:
    """One collective that the program is about to enter."""

    group: Any
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    original: Callable[..., Any]

    @property
    def group_name(self) -> str:
        return str(self.group.group_name)

    def run(self) -> Any:  # noqa: ANN401 - torch's Work
        return self.original(self.group, *self.args, **self.kwargs)


class Fault(Protocol):
    """A fault in the collectives. Called on whichever thread makes them."""

    @property
    def has_begun(self) -> bool: ...

    def on_call(self, call: Call) -> Any:  # noqa: ANN401 - the Work that the program gets
        """In place of the call."""

    def before_forward(self, ddp: Any) -> None:  # noqa: ANN401
        """DDP's forward begins, of which the backward will synchronise."""

    def after_forward(self, ddp: Any) -> None:  # noqa: ANN401
        """... and has ended."""


class Interception:
    """In force from `install` until `remove`, which comes by itself when nothing has happened for `PATIENCE_S`."""

    def __init__(self, fault: Fault) -> None:
        self._fault = fault
        self._originals: dict[str, Any] = {}
        self._ddp: tuple[Any, Any] | None = None  # the class, and its own forward
        self._syncing: set[int] = set()
        self._until = time.monotonic() + PATIENCE_S

    def install(self) -> None:
        """Raises DrillRefusal."""
        module = loaded(_C10D)
        if not module.is_initialized():
            raise DrillRefusal("the program has no process group")
        group_type = module.ProcessGroup
        for name in COLLECTIVES:
            # As it lies in the class: what getattr returns is no method any more when it is put back.
            descriptor = vars(group_type).get(name)
            if descriptor is not None:
                self._originals[name] = descriptor
                setattr(group_type, name, self._wrapped(name, getattr(group_type, name)))
        ddp_type = _ddp_type()
        if ddp_type is not None:
            self._ddp = ddp_type, ddp_type.forward
            ddp_type.forward = self._around(ddp_type.forward)

    def remove(self) -> None:
        group_type = loaded(_C10D).ProcessGroup
        for name, original in self._originals.items():
            setattr(group_type, name, original)
        if self._ddp is not None:
            ddp_type, forward = self._ddp
            ddp_type.forward = forward
        self._originals, self._ddp = {}, None

    def _is_over(self) -> bool:
        if self._fault.has_begun or time.monotonic() < self._until:
            return False
        self.remove()
        return True

    def _wrapped(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def collective(group: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - whatever torch's takes
            if self._is_over():
                return original(group, *args, **kwargs)
            return self._fault.on_call(Call(group, name, args, kwargs, original))

        return collective

    def _around(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def forward(ddp: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
            self._before(ddp)
            result = original(ddp, *args, **kwargs)
            self._after(ddp)
            return result

        return forward

    def _before(self, ddp: Any) -> None:  # noqa: ANN401
        if not self._is_over() and loaded("torch").is_grad_enabled() and ddp.require_backward_grad_sync:
            self._syncing.add(id(ddp))
            self._fault.before_forward(ddp)

    def _after(self, ddp: Any) -> None:  # noqa: ANN401
        if id(ddp) in self._syncing:
            self._syncing.discard(id(ddp))
            self._fault.after_forward(ddp)


def _ddp_type() -> Any:  # noqa: ANN401
    """None where the program has not imported it."""
    try:
        return loaded("torch.nn.parallel.distributed").DistributedDataParallel
    except DrillRefusal:
        return None
