"""A small transformer in the layout of the job, and one step of it with everything noted bit by bit.

One block per pipeline stage, split over TP as Megatron does it; every data-parallel replica gets the same batch, so
that replicas can be compared with each other as well. Weights and inputs come from integer arithmetic and are the same
on every machine. Sums over ranks are taken in the order of the ranks from what all of them sent, so they do not depend
on which algorithm a library chooses.
"""

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from everstep.preflight.checks.arithmetic import digest, filled
from everstep.preflight.stoptime.compare import COMPUTED, RECEIVED
from everstep.preflight.stoptime.layout import Layout
from everstep.preflight.stoptime.meeting import Meeting

WIDTH, HEAD, HEADS_PER_RANK, TOKENS = 128, 16, 2, 64
INNER = HEAD * HEADS_PER_RANK
LEARNING_RATE = 0.5


class Notes:
    """The trace of one step."""

    def __init__(self) -> None:
        self.entries: list[str] = []

    def computed(self, *tensors: torch.Tensor) -> None:
        self._add(COMPUTED, tensors)

    def received(self, *tensors: torch.Tensor) -> None:
        self._add(RECEIVED, tensors)

    def _add(self, how: str, tensors: Sequence[torch.Tensor]) -> None:
        each = "".join(digest(tensor) for tensor in tensors)
        self.entries.append(f"{how}{hashlib.sha256(each.encode()).hexdigest()[:12]}")


class Step:
    """One rank's part of the model."""

    def __init__(self, layout: Layout, meeting: Meeting, device: torch.device) -> None:
        self._layout, self._meeting, self._device = layout, meeting, device
        self._stage, self._shard = layout.role(meeting.rank)
        self._line = layout.line(meeting.rank, "pp")
        self._initial = [self._weight(*shape, salt) for salt, shape in enumerate(_SHAPES)]
        self._weights = [tensor.clone().requires_grad_() for tensor in self._initial]
        self._optimizer = torch.optim.SGD(self._weights, lr=LEARNING_RATE)
        self._batch = self._tensor(TOKENS, WIDTH, salt=11)
        self._wanted = self._tensor(TOKENS, WIDTH, salt=12)
        self._notes = Notes()

    def run(self) -> tuple[str, ...]:
        """From the fixed weights through one step: its trace. Raises Broken."""
        self._notes = Notes()
        with torch.no_grad():
            for weight, initial in zip(self._weights, self._initial, strict=True):
                weight.copy_(initial)
        self._notes.received(*self._weights)
        self._optimizer.zero_grad(set_to_none=True)
        taken, given = self._forward()
        self._backward(taken, given)
        self._reduce()
        self._optimizer.step()
        self._notes.computed(*self._weights)
        return tuple(self._notes.entries)

    def _forward(self) -> tuple[torch.Tensor, torch.Tensor]:
        """What this stage took in, and what it gave: the last one the loss."""
        taken = given = self._batch
        for stage in range(len(self._line)):
            if stage == self._stage:
                taken = (self._batch if stage == 0 else given).detach().requires_grad_()
                given = self._block(taken)
                if stage == len(self._line) - 1:
                    given = ((given - self._wanted) ** 2).mean()
                self._notes.computed(given)
            if stage < len(self._line) - 1:
                passed = self._pass_on(given if stage == self._stage else None, stage, stage + 1)
                given = passed if stage + 1 == self._stage else given
        return taken, given

    def _backward(self, taken: torch.Tensor, given: torch.Tensor) -> None:
        gradient: torch.Tensor | None = None
        for stage in reversed(range(len(self._line))):
            if stage == self._stage:
                given.backward(gradient)
                assert taken.grad is not None
                gradient = taken.grad
                self._notes.computed(gradient, *self._gradients())
            if stage > 0:
                passed = self._pass_on(gradient if stage == self._stage else None, stage, stage - 1)
                gradient = passed if stage - 1 == self._stage else gradient

    def _reduce(self) -> None:
        """The mean of the replicas' gradients."""
        if self._meeting.group("dp") is None:
            return
        for gradient in self._gradients():
            gradient.copy_(self._summed(gradient, "dp") / self._layout.size("dp"))

    def _block(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value, out, up, down = self._weights
        entered = _Copied.apply(x, self._sum_of_shards)
        heads = [(entered @ weight).reshape(TOKENS, HEADS_PER_RANK, HEAD).transpose(0, 1)
                 for weight in (query, key, value)]  # fmt: skip
        scores = torch.softmax(heads[0] @ heads[1].transpose(1, 2) / HEAD**0.5, dim=-1)
        mixed = (scores @ heads[2]).transpose(0, 1).reshape(TOKENS, INNER)
        x = x + _Summed.apply(mixed @ out, self._sum_of_shards)
        entered = _Copied.apply(x, self._sum_of_shards)
        return x + _Summed.apply(torch.nn.functional.gelu(entered @ up) @ down, self._sum_of_shards)

    def _sum_of_shards(self, part: torch.Tensor) -> torch.Tensor:
        if self._meeting.group("tp") is None:
            return part
        self._notes.computed(part)
        return self._summed(part, "tp")

    def _summed(self, part: torch.Tensor, along: str) -> torch.Tensor:
        """Noted as received: what the others sent is in it."""
        mine = part.contiguous()
        parts = [torch.empty_like(mine) for _ in range(self._layout.size(along))]
        self._meeting.exchange(lambda: dist.all_gather(parts, mine, group=self._meeting.group(along), async_op=True))
        total = parts[0].clone()
        for other in parts[1:]:
            total += other
        self._notes.received(total)
        return total

    def _pass_on(self, tensor: torch.Tensor | None, source: int, target: int) -> torch.Tensor:
        """From one stage to another; the others take part and throw it away."""
        moved = torch.empty(TOKENS, WIDTH, device=self._device) if tensor is None else tensor.detach().contiguous()
        self._meeting.exchange(
            lambda: dist.broadcast(moved, self._line[source], group=self._meeting.group("pp"), async_op=True)
        )
        if target == self._stage:
            self._notes.received(moved)
        return moved

    def _gradients(self) -> list[torch.Tensor]:
        return [weight.grad for weight in self._weights if weight.grad is not None]

    def _weight(self, rows: int, columns: int, salt: int) -> torch.Tensor:
        number = (self._stage * 1000 + self._shard) * len(_SHAPES) + salt + 100
        return self._tensor(rows, columns, salt=number) * (2.0 / WIDTH**0.5)

    def _tensor(self, rows: int, columns: int, *, salt: int) -> torch.Tensor:
        made: torch.Tensor = filled(rows, columns, "float32", salt)
        return made.to(self._device)


_SHAPES = ((WIDTH, INNER), (WIDTH, INNER), (WIDTH, INNER), (INNER, WIDTH), (WIDTH, 4 * INNER), (4 * INNER, WIDTH))
"""query, key, value, out, up, down: the part of one rank."""

_Sum = Callable[[torch.Tensor], torch.Tensor]


class _Copied(torch.autograd.Function):  # type: ignore[misc]  # torch says Any
    """Every shard gets all of it; the gradients of the shards are summed."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, sum_of_shards: _Sum) -> torch.Tensor:  # noqa: ANN401
        ctx.sum_of_shards = sum_of_shards
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:  # noqa: ANN401
        return ctx.sum_of_shards(gradients[0]), None


class _Summed(torch.autograd.Function):  # type: ignore[misc]  # torch says Any
    """The shards' parts are summed; every shard gets the whole gradient."""

    @staticmethod
    def forward(ctx: Any, part: torch.Tensor, sum_of_shards: _Sum) -> torch.Tensor:  # noqa: ANN401
        return sum_of_shards(part)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:  # noqa: ANN401
        return gradients[0], None
