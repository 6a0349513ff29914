"""A record of what a data loader has pulled from its sampler, and the random numbers that belong to each pull.

Answers: where in its epoch is a loader that fetches ahead, and which state of which generators must be put back so that
the same batch comes out again. Called by `integrations.data` for loaders that it skips in, and by the frameworks'
modules, which skip for themselves. It reads no data.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import IterableDataset

from everstep.worker.digests import random_state

END = object()
Random = dict[str, Any]


class Pulls:
    """Stands in a loader for the sampler whose indices it fetches. Knows what was fetched ahead of the loop.

    Where the loader fetches in this process, random numbers that the dataset draws (masks, crops) come from the same
    generators as the model's. So the state before each fetch is kept until the loop has got the batch.
    """

    def __init__(self, sampler: Any, is_fetched_here: bool) -> None:  # noqa: ANN401
        self._sampler = sampler
        self._is_fetched_here = is_fetched_here
        self._pulled = 0
        self._fetches: dict[int, Random] = {}
        self._skip = self._known = 0  # of the next iterator: left out; pulled before the snapshot
        self._again: dict[int, Random] = {}
        self._now: Random | None = None

    def ahead(self, delivered: int) -> dict[str, Any]:
        self._fetches = {number: random for number, random in self._fetches.items() if number >= delivered}
        return {"pulled": self._pulled, "fetches": dict(self._fetches)}

    def replay(self, skip: int, pulled: int, fetches: dict[int, Random], now: Random) -> None:
        """The next iterator leaves `skip` out. From index `pulled` on, which was not fetched yet, it is `now` again."""
        self._skip, self._known, self._now = skip, pulled, now
        self._again = dict(fetches)

    def settle(self) -> None:
        """The loader has given its first batch, or its end."""
        if self._now is not None:
            random_state.restore(self._now)
            self._now = None

    def __iter__(self) -> Iterator[Any]:
        skip, known, again = self._skip, self._known, self._again
        self._skip = self._known = self._pulled = 0
        self._again, self._fetches = {}, {}
        indices = iter(self._sampler)
        while True:
            if self._pulled >= known:
                self.settle()
            index = next(indices, END)
            if index is END:
                return
            number = self._pulled
            self._pulled += 1
            if number < skip:
                continue
            if self._is_fetched_here:
                if number in again:
                    random_state.restore(again[number])
                self._fetches.pop(number - _MAX_AHEAD, None)
                self._fetches[number] = random_state.capture_host()
            yield index

    def __len__(self) -> int:
        return len(self._sampler)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - `set_epoch`, `sampler`, `batch_size`: as the sampler has it
        if name == "_sampler":
            raise AttributeError(name)
        return getattr(self._sampler, name)


_MAX_AHEAD = 64
"""Fetches in this process ahead of the loop whose random state is kept. Frameworks look one batch ahead."""


def watch_pulls(loader: Any) -> Pulls | None:  # noqa: ANN401
    """Put a `Pulls` into the loader; None where indices do not say what is read (an IterableDataset), or are none."""
    inner = getattr(loader, "base_dataloader", loader)  # Accelerate's loaders are adapters round one of torch's
    if not isinstance(inner, torch.utils.data.DataLoader) or isinstance(inner.dataset, IterableDataset):
        return None
    name = "batch_sampler" if inner.batch_sampler is not None else "sampler"
    sampler = getattr(inner, name)
    if not isinstance(sampler, Pulls):
        sampler = Pulls(sampler, inner.num_workers == 0)
        vars(inner)[name] = sampler  # assigning is refused by the loader, for the sake of those who mean its size
    return sampler


def parts_of(loader: Any) -> Iterator[Any]:  # noqa: ANN401
    """The loader, the samplers in it, and what stands in for one."""
    return (part for _, part in _all_parts(loader))


def _parts(loader: Any) -> Iterator[tuple[str, Any]]:  # noqa: ANN401
    """The loader and the samplers in it, each once, with the way to it."""
    return ((path, part) for path, part in _all_parts(loader) if not isinstance(part, Pulls))


def _all_parts(loader: Any) -> Iterator[tuple[str, Any]]:  # noqa: ANN401
    waiting, seen = [("loader", loader)], set[int]()
    while waiting:
        path, part = waiting.pop()
        if part is None or id(part) in seen:
            continue
        seen.add(id(part))
        yield path, part
        inner = getattr(part, "__dict__", {})
        names = ("base_dataloader", "batch_sampler", "sampler", "_sampler")
        waiting += [(f"{path}.{name}", inner[name]) for name in names if name in inner]


def generators(loader: Any) -> Iterator[tuple[str, torch.Generator]]:  # noqa: ANN401
    """Yield the loader's and its samplers' own generators, each with its path: those that continue from one epoch to
    the next."""
    for path, part in _parts(loader):
        for name in ("generator", "synchronized_generator"):
            generator = getattr(part, "__dict__", {}).get(name)
            if isinstance(generator, torch.Generator):
                yield f"{path}.{name}", generator


def seeds_of(loader: Any) -> dict[str, torch.Tensor]:  # noqa: ANN401
    return {path: generator.get_state() for path, generator in generators(loader)}


def set_epoch_of(loader: Any, epoch: int) -> None:  # noqa: ANN401
    for _, part in _parts(loader):
        if callable(getattr(part, "set_epoch", None)):
            part.set_epoch(epoch)
