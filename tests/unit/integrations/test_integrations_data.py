"""ResumableLoader: whatever the loader, a program that stops after any step goes on as if it had not."""

import pickle
import random

import pytest
import torch
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    WeightedRandomSampler,
)

from everstep.integrations.data import ResumableLoader
from everstep.worker.digests import random_state

SIZE, BATCH = 23, 4

pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")  # torchdata's own


class Numbers(Dataset):
    """Draws from the generators that the model uses, as masks and crops do."""

    def __init__(self, draws: bool = True) -> None:
        self.draws = draws

    def __len__(self):
        return SIZE

    def __getitem__(self, index):
        noise = torch.rand(()).item() + random.random() if self.draws else 0.0
        return index, noise


class Stream(IterableDataset):
    def __iter__(self):
        return iter([(index, 0.0) for index in range(SIZE)])


def plain(**kwargs):
    return DataLoader(Numbers(), **kwargs)


def distributed(**kwargs):
    return DataLoader(Numbers(), sampler=DistributedSampler(Numbers(), 2, 1), **kwargs)


def with_generator(**kwargs):
    return DataLoader(Numbers(), shuffle=True, generator=torch.Generator().manual_seed(5), **kwargs)


def weighted(**kwargs):
    return DataLoader(Numbers(), sampler=WeightedRandomSampler(torch.rand(SIZE), 17), **kwargs)


def stateful(**kwargs):
    loading = pytest.importorskip("torchdata.stateful_dataloader")
    return loading.StatefulDataLoader(Numbers(), shuffle=True, **kwargs)


def prepared(**kwargs):
    """Accelerate's own: it fetches one batch ahead of the one that it gives."""
    loading = pytest.importorskip("accelerate.data_loader")
    return loading.prepare_data_loader(plain(shuffle=True, **kwargs), num_processes=1, process_index=0)


def prepared_shard(**kwargs):
    loading = pytest.importorskip("accelerate.data_loader")
    loader = plain(shuffle=True, **kwargs)
    return loading.prepare_data_loader(loader, num_processes=2, process_index=1, use_seedable_sampler=True)


def stateful_with_sampler(**kwargs):
    """Its position is its own; the order is the sampler's, which draws its seed where the model does."""
    loading = pytest.importorskip("torchdata.stateful_dataloader")
    return loading.StatefulDataLoader(Numbers(), sampler=RandomSampler(Numbers()), **kwargs)


LOADERS = {
    "in order": lambda: plain(batch_size=BATCH),
    "shuffled": lambda: plain(batch_size=BATCH, shuffle=True),
    "drop last": lambda: plain(batch_size=BATCH, shuffle=True, drop_last=True),
    "generator": lambda: with_generator(batch_size=BATCH),
    "distributed": lambda: distributed(batch_size=BATCH),
    "weighted": lambda: weighted(batch_size=BATCH),
    "no batches": lambda: plain(batch_size=None, shuffle=True),
    "stateful": lambda: stateful(batch_size=BATCH),
    "its sampler": lambda: stateful_with_sampler(batch_size=BATCH),
    "accelerate": lambda: prepared(batch_size=BATCH),
    "accelerate shard": lambda: prepared_shard(batch_size=BATCH),
}


def run(make, num_steps, state=None):
    """Steps from `state` on: what each saw and drew, and the state after each."""
    torch.manual_seed(1)
    random.seed(1)
    data = ResumableLoader(make())
    if state is not None:
        loaded, randoms = pickle.loads(state)
        data.load_state_dict(loaded)
        random_state.restore(randoms)
    steps, states = [], []
    for _, batch in zip(range(num_steps), data.forever(), strict=False):
        dropout = torch.rand(()).item() + random.random()
        steps.append((data.epoch, data.position, [torch.as_tensor(part).tolist() for part in batch], dropout))
        states.append(pickle.dumps((data.state_dict(), random_state.capture())))
    return steps, states


@pytest.mark.parametrize("name", LOADERS)
def test_a_program_that_stops_after_any_step_goes_on_as_if_it_had_not(name):
    make = LOADERS[name]
    num_steps = 2 * len(make()) + 3
    whole, states = run(make, num_steps)
    assert {epoch for epoch, *_ in whole} == {0, 1, 2}
    for stopped in range(num_steps - 1):
        rest, _ = run(make, num_steps - stopped - 1, states[stopped])
        assert rest == whole[stopped + 1 :], f"stopped after step {stopped}"


@pytest.mark.parametrize("name", ["shuffled", "accelerate", "stateful"])
def test_a_run_without_restarts_draws_what_the_loader_alone_would_draw(name):
    torch.manual_seed(1)
    random.seed(1)
    loader = LOADERS[name]()
    steps = [[torch.as_tensor(part).tolist() for part in batch] for _ in range(3) for batch in loader]
    drawn = torch.rand(()).item()
    torch.manual_seed(1)
    random.seed(1)
    data = ResumableLoader(LOADERS[name]())
    assert [[torch.as_tensor(part).tolist() for part in batch] for _ in range(3) for batch in data] == steps
    assert torch.rand(()).item() == drawn


@pytest.mark.parametrize("name", ["shuffled", "accelerate", "stateful"])
def test_it_can_stop_again_and_again(name):
    make = LOADERS[name]
    whole, _ = run(make, 20)
    seen, state = [], None
    while len(seen) < 20:
        steps, states = run(make, 3, state)
        seen += steps
        state = states[-1]
    assert seen[:20] == whole


@pytest.mark.slow
@pytest.mark.parametrize("make", [stateful, stateful_with_sampler, plain], ids=["stateful", "its sampler", "plain"])
def test_what_workers_have_fetched_ahead_is_read_again_and_nothing_else(make):
    def loader():
        return make(batch_size=BATCH, num_workers=2)

    def ids(steps):
        return [(epoch, batch[0]) for epoch, _, batch, _ in steps]

    whole, states = run(loader, 9)
    for stopped in (0, 2, 5, 7):
        rest, _ = run(loader, 8 - stopped, states[stopped])
        assert ids(rest) == ids(whole[stopped + 1 :]), f"stopped after step {stopped}"
        assert [step[3] for step in rest] == [step[3] for step in whole[stopped + 1 :]]


def test_a_stream_is_read_up_to_the_place_and_not_shown():
    def stream():
        return DataLoader(Stream(), batch_size=BATCH)

    whole, states = run(stream, 14)
    rest, _ = run(stream, 9, states[4])
    assert rest == whole[5:]


def test_accelerate_counting_as_well_is_refused():
    loading = pytest.importorskip("accelerate.data_loader")
    loader = loading.prepare_data_loader(
        DataLoader(Numbers()), num_processes=1, process_index=0, use_stateful_dataloader=True
    )
    with pytest.raises(TypeError, match="use_stateful_dataloader"):
        ResumableLoader(loader)


@pytest.mark.parametrize("name", ["shuffled", "generator", "accelerate", "stateful", "its sampler"])
def test_a_program_that_leaves_epochs_early_goes_on_as_well(name):
    def some(state=None):
        torch.manual_seed(1)
        random.seed(1)
        data = ResumableLoader(LOADERS[name]())
        if state is not None:
            loaded, randoms = pickle.loads(state)
            data.load_state_dict(loaded)
            random_state.restore(randoms)
        seen, states = [], []
        for _ in range(data.epoch, 3):
            for batch in data:
                seen.append((data.epoch, data.position, batch[0].tolist(), torch.rand(()).item()))
                if data.position == 3:
                    data.leave_epoch()
                states.append(pickle.dumps((data.state_dict(), random_state.capture())))
                if data.position == 0:
                    break
        return seen, states

    whole, states = some()
    assert len(whole) == 9
    for stopped in range(8):
        assert some(states[stopped])[0] == whole[stopped + 1 :], f"stopped after step {stopped}"


def test_leaving_an_epoch_early_begins_the_next_one():
    data = ResumableLoader(DataLoader(range(10), batch_size=2))
    next(iter(data))
    assert [batch.tolist() for batch in data] == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]
    assert (data.epoch, data.position) == (2, 0)
    assert list(ResumableLoader([]).forever()) == []


class Prefetching:
    """What a program puts round its loader, to be two batches ahead."""

    def __init__(self, loader):
        self.loader = loader

    def __iter__(self):
        batches, waiting = iter(self.loader), []
        for batch in batches:
            waiting.append(batch)
            if len(waiting) > 2:
                yield waiting.pop(0)
        yield from waiting


def test_a_look_ahead_goes_inside():
    def loader():
        return Prefetching(DataLoader(Numbers(draws=False), batch_size=BATCH, shuffle=True))

    whole, states = run(loader, 14)
    for stopped in (0, 4, 5, 8):
        assert run(loader, 13 - stopped, states[stopped])[0] == whole[stopped + 1 :]
