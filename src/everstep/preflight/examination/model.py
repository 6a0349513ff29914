"""A small transformer in the layout of the job, and one step of it with everything noted bit by bit.

One block per stage of the pipeline, split over TP as Megatron does it. Every data-parallel replica gets the same batch,
so that replicas can be compared with each other as well. Weights and inputs come from integer arithmetic and are the
same on every machine. Sums over ranks are taken in the order of the ranks from what all of them sent, so they do not
depend on which algorithm a library chooses; the mean of the replicas, which are equal, does not depend on their number.
"""

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from everstep.preflight.checks.working.arithmetic import digest, filled
from everstep.preflight.examination.compare import COMPUTED, RECEIVED
from everstep.preflight.examination.layout import Layout
from everstep.preflight.examination.meeting import Meeting

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


class Stage:
    """One stage's weights on one rank, and what happened to them in a step."""

    def __init__(self, stage: int, shard: int, device: torch.device) -> None:
        number = (stage * 1000 + shard) * len(_SHAPES) + 100
        self.initial = [_tensor(*s, number + i, device) * (2.0 / WIDTH**0.5) for i, s in enumerate(_SHAPES)]
        self.weights = [tensor.clone().requires_grad_() for tensor in self.initial]
        self.notes = Notes()
        self.taken = self.given = torch.empty(0)

    def begin(self) -> None:
        self.notes = Notes()
        with torch.no_grad():
            for weight, initial in zip(self.weights, self.initial, strict=True):
                weight.copy_(initial)
        self.notes.received(*self.weights)

    @property
    def gradients(self) -> list[torch.Tensor]:
        return [weight.grad for weight in self.weights if weight.grad is not None]


class Step:
    """One rank's part of the model."""

    def __init__(self, layout: Layout, meeting: Meeting, device: torch.device) -> None:
        self._layout, self._meeting, self._device = layout, meeting, device
        self._line = layout.line(meeting.rank, "pp")
        self._place = layout.place(meeting.rank).get("pp", 0)
        shard = layout.shard(meeting.rank)
        self._stages = {stage: Stage(stage, shard, device) for stage in layout.stages(meeting.rank)}
        weights = [weight for stage in self._stages.values() for weight in stage.weights]
        self._optimizer = torch.optim.SGD(weights, lr=LEARNING_RATE)
        self._batch = _tensor(TOKENS, WIDTH, 11, device)
        self._wanted = _tensor(TOKENS, WIDTH, 12, device)

    def run(self) -> dict[int, tuple[str, ...]]:
        """From the fixed weights through one step: the trace of each stage. Raises Broken."""
        for stage in self._stages.values():
            stage.begin()
        self._optimizer.zero_grad(set_to_none=True)
        self._forward()
        self._backward()
        for stage in self._stages.values():
            self._reduce(stage)
        self._optimizer.step()
        for stage in self._stages.values():
            stage.notes.computed(*stage.weights)
        return {number: tuple(stage.notes.entries) for number, stage in self._stages.items()}

    def _forward(self) -> None:
        given = self._batch
        for number in range(self._layout.num_stages):
            stage = self._stages.get(number)
            if stage is not None:
                stage.taken = given.detach().clone().requires_grad_()
                stage.notes.received(stage.taken)
                stage.given = self._block(stage)
                if number == self._layout.num_stages - 1:
                    stage.given = ((stage.given - self._wanted) ** 2).mean()
                stage.notes.computed(stage.given)
                given = stage.given
            if number < self._layout.num_stages - 1:
                given = self._pass_on(given, number, number + 1)

    def _backward(self) -> None:
        gradient: torch.Tensor | None = None
        for number in reversed(range(self._layout.num_stages)):
            stage = self._stages.get(number)
            if stage is not None:
                if gradient is not None:
                    stage.notes.received(gradient)
                stage.given.backward(gradient)
                gradient = stage.taken.grad
                assert gradient is not None
                stage.notes.computed(gradient, *stage.gradients)
            if number > 0:
                gradient = self._pass_on(gradient, number, number - 1)

    def _reduce(self, stage: Stage) -> None:
        """The mean of the replicas' gradients, exact where they are equal: float64 has room for their sum."""
        if self._meeting.group("dp") is not None:
            for gradient in stage.gradients:
                parts = self._gathered(gradient, "dp")
                gradient.copy_(sum(part.double() for part in parts) / len(parts))
        stage.notes.received(*stage.gradients)

    def _block(self, stage: Stage) -> torch.Tensor:
        query, key, value, out, up, down = stage.weights
        sums = Sums(self._sum_of_shards, stage.notes)
        entered = _Copied.apply(stage.taken, sums)
        heads = [
            (entered @ weight).reshape(TOKENS, HEADS_PER_RANK, HEAD).transpose(0, 1) for weight in (query, key, value)
        ]
        scores = torch.softmax(heads[0] @ heads[1].transpose(1, 2) / HEAD**0.5, dim=-1)
        mixed = (scores @ heads[2]).transpose(0, 1).reshape(TOKENS, INNER)
        x = stage.taken + _Summed.apply(mixed @ out, sums)
        entered = _Copied.apply(x, sums)
        return x + _Summed.apply(torch.nn.functional.gelu(entered @ up) @ down, sums)

    def _sum_of_shards(self, part: torch.Tensor, notes: Notes) -> torch.Tensor:
        if self._meeting.group("tp") is None:
            return part
        notes.computed(part)
        total, *others = self._gathered(part, "tp")
        for other in others:
            total = total + other
        notes.received(total)
        return total

    def _gathered(self, part: torch.Tensor, along: str) -> list[torch.Tensor]:
        mine = part.contiguous()
        parts = [torch.empty_like(mine) for _ in range(self._layout.size(along))]
        self._meeting.exchange(lambda: dist.all_gather(parts, mine, group=self._meeting.group(along), async_op=True))
        return parts

    def _pass_on(self, tensor: torch.Tensor | None, source: int, target: int) -> torch.Tensor:
        """From one stage to another; ranks that have neither take part and throw it away."""
        giver, taker = self._layout.holder(source), self._layout.holder(target)
        if giver == taker and tensor is not None:
            return tensor.detach()
        is_giver = giver == self._place and tensor is not None
        moved = tensor.detach().contiguous() if is_giver and tensor is not None else self._empty()
        if giver != taker:
            group = self._meeting.group("pp")
            self._meeting.exchange(lambda: dist.broadcast(moved, self._line[giver], group=group, async_op=True))
        return moved

    def _empty(self) -> torch.Tensor:
        return torch.zeros(TOKENS, WIDTH, device=self._device)


def _tensor(rows: int, columns: int, salt: int, device: torch.device) -> torch.Tensor:
    made: torch.Tensor = filled(rows, columns, "float32", salt)
    return made.to(device)


class Sums:
    """Sums over ranks, and the notes of the rank that computes them: all that the functions below need of their
    rank."""

    def __init__(self, total: Callable[[torch.Tensor, Notes], torch.Tensor], notes: Notes) -> None:
        self._total, self._notes = total, notes

    def of(self, part: torch.Tensor) -> torch.Tensor:
        return self._total(part, self._notes)


_SHAPES = ((WIDTH, INNER), (WIDTH, INNER), (WIDTH, INNER), (INNER, WIDTH), (WIDTH, 4 * INNER), (4 * INNER, WIDTH))
"""query, key, value, out, up, down: the part of one rank."""


class _Copied(torch.autograd.Function):  # type: ignore[misc]  # torch says Any
    """Every shard gets all of it; the gradients of the shards are summed."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, sums: Sums) -> torch.Tensor:  # noqa: ANN401
        ctx.sums = sums
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:  # noqa: ANN401
        return ctx.sums.of(gradients[0]), None


class _Summed(torch.autograd.Function):  # type: ignore[misc]  # torch says Any
    """The shards' parts are summed; every shard gets the whole gradient."""

    @staticmethod
    def forward(ctx: Any, part: torch.Tensor, sums: Sums) -> torch.Tensor:  # noqa: ANN401
        return sums.of(part)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:  # noqa: ANN401
        return gradients[0], None
