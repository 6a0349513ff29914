"""Faults of communication: a collective is left out, called with another number of elements, or put off.

They happen at the rank's next collective of the fitting kind. All of them end in a hang or, with another number of
elements, at times in a loud error of the library. What was in force before is replaced by a new drill.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any

from everstep.worker.drills import DrillRefusal, Happened, loaded
from everstep.worker.drills.interception import Call, Fault, Interception
from everstep.worker.link.runtime import Runtime

_C10D = "torch.distributed.distributed_c10d"
_A_DAY_S = 86400.0

_in_force: Interception | None = None


def arm(runtime: Runtime, request: Mapping[str, Any]) -> None:
    """Raises DrillRefusal."""
    global _in_force
    make: dict[str, Callable[[Happened], Fault]] = {
        "skip-collective": SkippedCollective,
        "mismatched-shape": MismatchedShape,
        "opposite-order": OppositeOrder,
    }
    interception = Interception(make[str(request["kind"])](Happened(runtime, request)))
    if _in_force is not None:
        _in_force.remove()
        _in_force = None
    interception.install()
    _in_force = interception


class SkippedCollective:
    """Skips the next collective; with DDP, the reduction of one backward.

    The rank continues with its program, also with collectives of other groups. If its next collective of the same group
    would pair with the one that the others still wait in, and so hide the fault, it waits outside of all of them."""

    def __init__(self, happened: Happened) -> None:
        self._happened = happened
        self._groups: set[str] = set()  # in which one was left out

    @property
    def has_begun(self) -> bool:
        return bool(self._groups)

    def on_call(self, call: Call) -> Any:  # noqa: ANN401
        if not self._groups:
            self._skip(call.group_name, call.name)
            return _done()
        if call.group_name in self._groups:
            _wait_outside()
        return call.run()

    def before_forward(self, ddp: Any) -> None:  # noqa: ANN401
        if not self._groups:
            ddp.require_backward_grad_sync = False
        elif ddp.process_group.group_name in self._groups:
            _wait_outside()

    def after_forward(self, ddp: Any) -> None:  # noqa: ANN401
        if not ddp.require_backward_grad_sync:
            ddp.require_backward_grad_sync = True
            self._skip(str(ddp.process_group.group_name), "DDP's reduction of the gradients")

    def _skip(self, group: str, what: str) -> None:
        self._groups.add(group)
        self._happened(f"left out {what} in group {group}")


class MismatchedShape:
    """The next all_reduce has one element less than the others'; a single one becomes two."""

    def __init__(self, happened: Happened) -> None:
        self._happened = happened
        self.has_begun = False

    def on_call(self, call: Call) -> Any:  # noqa: ANN401
        if self.has_begun or call.name != "allreduce":
            return call.run()
        self.has_begun = True
        tensors, *rest = call.args
        other = [tensor.new_zeros(_another(tensor.numel())) for tensor in tensors]
        self._happened(f"all_reduce of {other[0].numel()} elements instead of {tensors[0].numel()}")
        return call.original(call.group, other, *rest, **call.kwargs)

    def before_forward(self, ddp: Any) -> None:  # noqa: ANN401
        """The reduction comes after the forward."""

    def after_forward(self, ddp: Any) -> None:  # noqa: ANN401
        """In place of DDP's first bucket."""
        if self.has_begun:
            return
        self.has_begun = True
        parameters = [p for p in ddp.module.parameters() if p.requires_grad]
        count = _another(sum(parameter.numel() for parameter in parameters))
        self._happened(f"all_reduce of {count} elements in place of DDP's")
        loaded(_C10D).all_reduce(parameters[0].detach().new_zeros(count), group=ddp.process_group)


class OppositeOrder:
    """Collectives of a smaller group are put off until after the next one of a group that contains it."""

    def __init__(self, happened: Happened) -> None:
        """Raises DrillRefusal where this rank has no such groups."""
        self._happened = happened
        self._around = _containing_groups()
        self._put_off: list[Call] = []
        self._is_done = False
        if not self._around:
            raise DrillRefusal(
                "this rank has no two process groups of which one contains the other: "
                "in one group alone nothing can be in opposite order"
            )

    @property
    def has_begun(self) -> bool:
        return bool(self._put_off)

    def on_call(self, call: Call) -> Any:  # noqa: ANN401
        if self._is_done:
            return call.run()
        if self._put_off and call.group_name in self._around[self._put_off[0].group_name]:
            return self._turn_round(call)
        small = self._put_off[0].group_name if self._put_off else call.group_name
        if call.group_name != small or small not in self._around:
            return call.run()
        if not self._put_off:
            self._happened(f"puts off {call.name} in group {small}")
        self._put_off.append(call)
        return _done()

    def before_forward(self, ddp: Any) -> None:  # noqa: ANN401
        """DDP's own reduction passes what was put off."""

    def after_forward(self, ddp: Any) -> None:  # noqa: ANN401
        """See above."""

    def _turn_round(self, call: Call) -> Any:  # noqa: ANN401
        self._is_done = True
        self._happened(f"enters {call.name} in group {call.group_name} first")
        work = call.run()
        work.wait()  # gloo would run both at once, and nothing would hang
        for late in self._put_off:
            late.run().wait()
        return work


def _another(num_elements: int) -> int:
    return num_elements - 1 if num_elements > 1 else 2


def _containing_groups() -> dict[str, set[str]]:
    """Name of a group of this rank -> names of its groups that hold all of those ranks and more."""
    module = loaded(_C10D)
    if not module.is_initialized():
        raise DrillRefusal("the program has no process group")
    members = {str(group.group_name): set(module.get_process_group_ranks(group)) for group in module._world.pg_map}
    around = {
        name: {other for other, more in members.items() if ranks < more}
        for name, ranks in members.items()
        if len(ranks) > 1
    }
    return {name: others for name, others in around.items() if others}


def _wait_outside() -> None:
    while True:
        time.sleep(_A_DAY_S)


def _done() -> Any:  # noqa: ANN401
    """A Work that is complete, for a collective that never took place."""
    torch_work: Any = loaded(_C10D).Work
    futures = loaded("torch.futures")

    class Done(torch_work):  # type: ignore[misc]  # known only here
        def wait(self, timeout: object = None) -> bool:
            return True

        def is_completed(self) -> bool:
            return True

        def is_success(self) -> bool:
            return True

        def get_future(self) -> Any:  # noqa: ANN401
            future = futures.Future()
            future.set_result([])
            return future

    return Done()
