"""Numbers that the program reports of its steps (loss, gradient norm): kept for a second, then sent to the agent in one
frame.

A value that is not finite, or far above its own level, is sent at once. Nothing waits: neither for the agent (a frame
that cannot be sent is lost) nor for a device (a value that is still being computed there is read when it has arrived).
Called by `everstep.step` on the training thread.
"""

import collections
import math
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from everstep.worker.process.capturing import is_capturing

if TYPE_CHECKING:
    from everstep.wire.frames import RankTells

SEND_EVERY_S = 1.0
JUMP = 3.0
"""Times a value's own running level: sent at once. Lower than what is judged, so that the judge is never late."""

URGENT_EVERY_S = 0.1
"""Interval, doubled each time until it is as long as usual: a loss that stays NaN on ten thousand ranks must not drown
the controller. Reset after CALM_S without."""

CALM_S = 10.0

MAX_POINTS = 32
"""In a frame, which must fit into the kernel's buffer whole. Of faster steps every second, fourth, ... one is sent."""

MAX_WAITING = 8
"""Values that a device has not delivered yet; more are left out."""

_LEVEL_SHARE = 0.1


Hook = Callable[[int, float | None, float | None], None]
"""Hears each step's loss and gradient norm, also those that are not sent."""


class Teller(Protocol):
    """The part of `worker.link.runtime.Runtime` that is used here."""

    def tell(self, frame: "RankTells") -> None: ...
    def report_fault(self, where: str, why: str) -> None: ...


class _Level:
    """Whether a value stands out of those before it."""

    def __init__(self) -> None:
        self._mean: float | None = None

    def stands_out(self, value: float | None) -> bool:
        if value is None:
            return False
        if not math.isfinite(value):
            return True
        size = abs(value)
        before = self._mean
        self._mean = size if before is None else before + _LEVEL_SHARE * (size - before)
        return before is not None and size > JUMP * before


class Numbers:
    """The numbers of one rank. `take` is the only call."""

    def __init__(self, runtime: Teller, hooks: Sequence[Hook] = ()) -> None:
        self._runtime = runtime
        self._hooks = hooks
        self._points: list[tuple[int, float | None, float | None]] = []
        self._stride = 1
        self._num_taken = 0
        self._levels = (_Level(), _Level())
        self._sent_at = self._urgent_at = float("-inf")
        self._urgent_every_s = URGENT_EVERY_S
        self._waiting: collections.deque[tuple[int, _Arriving | None, _Arriving | None]] = collections.deque()
        self._told: set[str] = set()

    def take(self, step: int, loss: object, grad_norm: object) -> None:
        """A step's numbers: Python numbers or tensors of one element, on any device."""
        if is_capturing():
            return
        first, second = self._begin("loss", loss), self._begin("grad_norm", grad_norm)
        if not self._waiting and not isinstance(first, _Arriving) and not isinstance(second, _Arriving):
            self._keep(step, first, second)
        else:
            self._queue(step, first, second)
        if self._points and time.monotonic() - self._sent_at >= SEND_EVERY_S:
            self._send()

    def _begin(self, name: str, value: object) -> "float | _Arriving | None":
        if value is None or isinstance(value, float | int):
            return None if value is None else float(value)
        torch: Any = sys.modules.get("torch")
        if torch is None or type(value) not in (torch.Tensor, torch.nn.Parameter) or value.numel() != 1:  # type: ignore[attr-defined]
            return self._refuse(name, value)
        tensor: Any = value.detach()  # type: ignore[attr-defined]
        return float(tensor.item()) if tensor.device.type == "cpu" else _Arriving(torch, tensor)

    def _refuse(self, name: str, value: object) -> float | None:
        """Another number (NumPy's), or nothing that could be read without harm: said once."""
        try:
            if type(value).__module__ == "numpy":
                return float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            pass
        if name not in self._told:
            self._told.add(name)
            kind = f"{type(value).__module__}.{type(value).__qualname__}"
            self._runtime.report_fault("everstep.step", f"{name} is a {kind}; a number or a tensor of one is read")
        return None

    def _queue(self, step: int, loss: "float | _Arriving | None", grad_norm: "float | _Arriving | None") -> None:
        self._waiting.append((step, _known(loss), _known(grad_norm)))
        while self._waiting and all(each is None or each.has_arrived() for each in self._waiting[0][1:]):
            arrived, first, second = self._waiting.popleft()
            self._keep(arrived, *(None if each is None else each.value for each in (first, second)))
        while len(self._waiting) > MAX_WAITING:
            self._waiting.popleft()

    def _keep(self, step: int, loss: float | None, grad_norm: float | None) -> None:
        if loss is None and grad_norm is None:
            return
        for hook in self._hooks:
            hook(step, loss, grad_norm)
        stand_out = [level.stands_out(value) for level, value in zip(self._levels, (loss, grad_norm), strict=True)]
        is_urgent = any(stand_out)
        self._num_taken += 1
        if is_urgent or self._num_taken % self._stride == 0:
            self._points.append((step, loss, grad_norm))
        if len(self._points) > MAX_POINTS:
            self._points = self._points[::-2][::-1]  # the newest stays
            self._stride *= 2
        if is_urgent:
            self._hurry()

    def _hurry(self) -> None:
        now = time.monotonic()
        if now - self._urgent_at >= CALM_S:
            self._urgent_every_s = URGENT_EVERY_S
        if self._urgent_every_s < SEND_EVERY_S and now - self._urgent_at >= self._urgent_every_s:
            self._urgent_at = now
            self._urgent_every_s *= 2
            self._send(is_urgent=True)

    def _send(self, *, is_urgent: bool = False) -> None:
        points, self._points, self._stride = self._points, [], 1
        self._sent_at = time.monotonic()
        self._runtime.tell({"numbers": points, "urgent": is_urgent})


class _Arriving:
    """One number on its way from a device, or one that is known."""

    def __init__(self, torch: Any, tensor: Any) -> None:  # noqa: ANN401 - torch is not imported here
        self.value: float | None = None
        self._event: Any = None
        self._copy: Any = None
        if tensor is not None:
            device = torch.get_device_module(tensor.device)
            self._copy = torch.empty((), dtype=tensor.dtype, device="cpu", pin_memory=tensor.device.type == "cuda")
            self._copy.copy_(tensor.reshape(()), non_blocking=True)
            self._event = device.Event()
            self._event.record(device.current_stream(tensor.device))

    def has_arrived(self) -> bool:
        if self._copy is not None and self._event.query():
            self.value, self._copy, self._event = float(self._copy.item()), None, None
        return self._copy is None


def _known(value: "float | _Arriving | None") -> _Arriving | None:
    if value is None or isinstance(value, _Arriving):
        return value
    made = _Arriving(None, None)
    made.value = value
    return made
