"""A data loader that goes on in the middle of an epoch: no sample twice, none left out.

    data = ResumableLoader(loader)
    state = everstep.State(model=model, optimizer=optimizer, data=data)
    for step, batch in zip(state.steps(10_000), data.forever()):
        ...

Answers: which batches has the training loop got, and how is a new loader brought to just behind them without reading
them again. What a loader has fetched ahead counts as not read. Batches are counted where they are handed out; the
samplers of a `torch.utils.data.DataLoader` are run again from the random state in which the epoch began, and their
indices are left out. A loader that keeps its own position (`torchdata`'s StatefulDataLoader) is asked for it. Used by
programs, and by the modules beside this one; it knows nothing of snapshots.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from everstep.integrations import rest
from everstep.integrations.pulls import END, Random, generators, seeds_of, set_epoch_of, watch_pulls
from everstep.integrations.rest import Rest
from everstep.worker.digests import random_state


class ResumableLoader:
    """In place of the loader: iterating gives an epoch, or after a restart the rest of the one that was under way.

    Calls `set_epoch` of loader and samplers. A batch counts as read when the loop gets it, so a loop that takes batches
    ahead of its steps needs this round its own look-ahead.
    """

    def __init__(self, loader: Any) -> None:  # noqa: ANN401 - anything that can be iterated again and again
        self._loader = loader
        self._keeps_position = _keeps_position(loader)
        self._pulls = None if self._keeps_position else watch_pulls(loader)
        self._epoch = 0
        self._delivered = 0
        self._is_within = False
        self._began: Random | None = None
        self._seeds: dict[str, torch.Tensor] = {}
        self._own: Any = None  # what a loader that keeps its position said at the end of the last epoch
        self._restored: dict[str, Any] | None = None
        self._before = 0  # samples of this epoch that ranks of another number have taken
        self._rest: Rest | None = None

    @property
    def epoch(self) -> int:
        """The epoch with which iterating continues, from 0."""
        return self._epoch

    @property
    def position(self) -> int:
        """Batches of this epoch that the loop has got; since the number of ranks changed, where it did meanwhile."""
        return self._delivered

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        self.leave_epoch()
        restored, self._restored = self._restored, None
        batches = self._begin_epoch() if restored is None else self._go_on(restored)
        self._is_within = True
        for batch in batches:
            self._delivered += 1
            yield batch
        self._end_epoch()

    def leave_epoch(self) -> None:
        """Leave out the rest of the epoch. Done by iterating again, as with any loader."""
        if self._is_within:
            self._end_epoch()
            self._own = None  # it would go on in the epoch that was left

    def forever(self) -> Iterator[Any]:
        """Batch after batch, epoch after epoch. For `zip(state.steps(n), data.forever())`, in this order."""
        is_empty = False
        while not is_empty:  # an empty loader would be asked for ever
            is_empty = self._restored is None  # the rest of an epoch may well be nothing
            for batch in self:
                is_empty = False
                yield batch

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - `dataset`, `batch_size`: as the loader has it
        if name == "_loader":
            raise AttributeError(name)
        return getattr(self._loader, name)

    def state_dict(self) -> dict[str, Any]:
        return _for_others(self._own_state())

    def _own_state(self) -> dict[str, Any]:
        if self._restored is not None:
            return dict(self._restored)  # nothing was read since
        state: dict[str, Any] = {"epoch": self._epoch, "delivered": self._delivered}
        if self._is_within:
            state |= {"random": self._began, "seeds": self._seeds}
        else:
            state |= {"random": None, "seeds": seeds_of(self._loader)}
        if self._is_within:
            taken = rest.taken(self._loader, self._before, self._delivered)
            state |= {"world": rest.num_replicas(self._loader), "before": self._before, "taken": taken}
        if self._keeps_position:
            state |= {"loader": self._loader.state_dict() if self._is_within else self._own}
        return state | (self._pulls.ahead(self._delivered) if self._pulls is not None and self._is_within else {})

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._restored = _from_others(dict(state))
        self._epoch, self._delivered = int(state["epoch"]), int(state["delivered"])
        self._before = int(state.get("before", 0))
        self._is_within = False
        if state["random"] is not None and state.get("world", 0) not in (0, rest.num_replicas(self._loader)):
            self._spread(self._restored)

    def _spread(self, state: dict[str, Any]) -> None:
        """Another number of ranks was in the middle of the epoch: its rest begins here. Raises TypeError."""
        if self._keeps_position:
            raise TypeError("a loader that keeps its own position cannot go on with another number of ranks")
        self._delivered, self._before = 0, int(state["taken"])
        self._put_rest()
        state |= {"delivered": 0, "before": self._before, "random": None}

    def _put_rest(self) -> None:
        if self._rest is None and self._before:
            self._rest = Rest(self._loader, self._before)

    def _begin_epoch(self) -> Iterator[Any]:
        set_epoch_of(self._loader, self._epoch)
        self._began = random_state.capture_host()
        self._seeds = seeds_of(self._loader)
        return iter(self._loader)

    def _end_epoch(self) -> None:
        if self._keeps_position:
            self._own = self._loader.state_dict()
        self._epoch += 1
        self._delivered = self._before = 0
        if self._rest is not None:
            self._rest.put_back()
            self._rest = None
        self._is_within = False

    def _go_on(self, state: dict[str, Any]) -> Iterator[Any]:
        """The rest of an epoch. What making the iterator draws was drawn before the snapshot: it leaves no trace."""
        for path, generator in generators(self._loader):
            if path in state["seeds"]:
                generator.set_state(state["seeds"][path])
        self._put_rest()
        if self._keeps_position and state["loader"] is not None:
            self._loader.load_state_dict(state["loader"])
        if state["random"] is None:
            return self._begin_epoch()
        set_epoch_of(self._loader, self._epoch)
        self._began, self._seeds = state["random"], state["seeds"]
        now = random_state.capture_host()
        random_state.restore(state["random"])
        if self._pulls is not None:
            self._pulls.replay(self._delivered, state["pulled"], state["fetches"], now)
            following = iter(self._loader)
            first = next(following, END)
            self._pulls.settle()
            return _with_first(first, following)
        batches: Iterator[Any] = iter(self._loader)
        for _ in range(0 if self._keeps_position else self._delivered):
            next(batches)
        random_state.restore(now)
        return batches


def _for_others(state: dict[str, Any]) -> dict[str, Any]:
    """Generators' states as plain bytes: tensors that differ from rank to rank could not go to another number of
    ranks."""
    return state | {"seeds": {path: _bytes_of(seed) for path, seed in state["seeds"].items()}}


def _from_others(state: dict[str, Any]) -> dict[str, Any]:
    return state | {"seeds": {path: _tensor_of(seed) for path, seed in state["seeds"].items()}}


def _bytes_of(generator_state: torch.Tensor) -> bytes:
    return bytes(generator_state.numpy())


def _tensor_of(generator_state: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(generator_state), dtype=torch.uint8)


def _keeps_position(loader: Any) -> bool:  # noqa: ANN401
    if hasattr(loader, "use_stateful_dataloader"):  # Accelerate's: state_dict is there in any case
        if loader.use_stateful_dataloader:
            raise TypeError("ResumableLoader counts for itself: prepare the loader without use_stateful_dataloader")
        return False
    return callable(getattr(loader, "state_dict", None)) and callable(getattr(loader, "load_state_dict", None))


def _with_first(first: object, batches: Iterator[Any]) -> Iterator[Any]:
    if first is not END:
        yield first
        yield from batches
