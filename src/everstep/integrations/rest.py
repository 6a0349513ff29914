"""The rest of an epoch when it continues with another number of ranks: no sample twice, none left out.

Answers: how much of the epoch's order have all ranks together taken, and which of the rest is this rank's. The order is
torch's `DistributedSampler`'s own, which does not depend on the number of ranks: they took a piece from its front, so
the rest is divided as the whole was. Called by `integrations.data`.
"""

import copy
from collections.abc import Iterator
from typing import Any

from torch.utils.data import BatchSampler, DistributedSampler

from everstep.integrations.pulls import Pulls, parts_of
from everstep.worker.size import world


def num_replicas(loader: Any) -> int:  # noqa: ANN401
    """Among how many ranks its samples are divided."""
    found = _find(loader)
    return world().size if found is None else int(found[1].num_replicas)


def taken(loader: Any, before: int, delivered: int) -> int:  # noqa: ANN401
    """Samples of the epoch that all ranks have got, `before` by ranks of other sizes: each as many batches as this
    one."""
    found, inner = _find(loader), getattr(loader, "base_dataloader", loader)
    num = before + delivered * int(getattr(inner, "batch_size", None) or 1) * num_replicas(loader)
    return num if found is None else min(num, len(found[1].dataset))


class Rest:
    """In place of the sampler, until the epoch is over."""

    def __init__(self, loader: Any, before: int) -> None:  # noqa: ANN401
        """Raises TypeError where the rest cannot be divided."""
        found = _find(loader)
        if found is None:
            raise TypeError(
                "an epoch that was under way with another number of ranks can go on only where a "
                "torch.utils.data.DistributedSampler divides the samples"
            )
        self._holder, self._sampler = found
        self._before = before
        setattr(self._holder, _name(self._holder), self)

    def put_back(self) -> None:
        """The epoch is over: the next one is divided as a whole."""
        setattr(self._holder, _name(self._holder), self._sampler)

    def __iter__(self) -> Iterator[int]:
        whole = copy.copy(self._sampler)
        whole.num_replicas, whole.rank = 1, 0
        whole.num_samples = whole.total_size = len(whole.dataset)
        left = list(whole)[self._before :]
        size, rank = self._sampler.num_replicas, self._sampler.rank
        if self._sampler.drop_last:
            left = left[: len(left) // size * size]
        elif left:
            missing = -len(left) % size
            left += (left * (missing // len(left) + 1))[:missing]  # as the sampler does: all ranks get as many
        return iter(left[rank::size])

    def __len__(self) -> int:
        num, size = max(0, len(self._sampler.dataset) - self._before), self._sampler.num_replicas
        return int(num // size if self._sampler.drop_last else -(-num // size))

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - `set_epoch`, `dataset`: as the sampler has it
        if name == "_sampler":
            raise AttributeError(name)
        return getattr(self._sampler, name)


def _find(loader: Any) -> tuple[Any, Any] | None:  # noqa: ANN401
    """The part that takes indices from a DistributedSampler, and that sampler."""
    for part in parts_of(loader):
        if isinstance(part, BatchSampler | Pulls):
            sampler = getattr(part, _name(part))
            sampler = sampler._sampler if isinstance(sampler, Rest) else sampler
            if isinstance(sampler, DistributedSampler):
                return part, sampler
    return None


def _name(holder: Any) -> str:  # noqa: ANN401
    return "_sampler" if isinstance(holder, Pulls) else "sampler"
