"""An epoch that one number of ranks begins and another one ends: each sample once."""

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from everstep.integrations.data import ResumableLoader

SIZE, BATCH = 60, 2


def loaders(size: int, *, shuffle: bool = True, drop_last: bool = False, workers: int = 0) -> list[ResumableLoader]:
    data = TensorDataset(torch.arange(SIZE))
    samplers = [DistributedSampler(data, size, rank, shuffle=shuffle, drop_last=drop_last) for rank in range(size)]
    return [ResumableLoader(DataLoader(data, batch_size=BATCH, sampler=each, num_workers=workers)) for each in samplers]


def take(ranks: list[ResumableLoader], num: int | None = None) -> tuple[list[int], dict]:
    """So many batches of each rank, all of the epoch without a number; and rank 0's state then."""
    seen: list[int] = []
    iterators = [iter(each) for each in ranks]
    count = 0
    while num is None or count < num:
        batches = [next(each, None) for each in iterators]
        if batches[0] is None:
            break
        seen += [int(value) for batch in batches for value in batch[0]]
        count += 1
    return seen, ranks[0].state_dict()


def resumed(size: int, state: dict, **kwargs: object) -> list[ResumableLoader]:
    made = loaders(size, **kwargs)
    for each in made:
        each.load_state_dict(state)
    return made


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("sizes", [(3, 2, 3), (2, 3, 1), (4, 3, 2), (1, 2, 4)])
def test_each_sample_is_seen_once(sizes, shuffle):
    first, state = take(loaders(sizes[0], shuffle=shuffle), 3)
    second, state = take(resumed(sizes[1], state, shuffle=shuffle), 4)
    third, _ = take(resumed(sizes[2], state, shuffle=shuffle))
    seen = [*first, *second, *third]
    assert set(seen) == set(range(SIZE))
    assert len(seen) - SIZE < sizes[2], "only what the sampler pads, so that all ranks get as many"


def test_the_next_epoch_is_a_whole_one_again():
    _, state = take(loaders(3), 3)
    ranks = resumed(2, state)
    take(ranks)
    assert [each.epoch for each in ranks] == [1, 1]
    seen, _ = take(ranks)
    assert sorted(seen) == list(range(SIZE))
    truth = loaders(2)
    take(truth)
    assert take(truth)[0] == seen, "as a run of that size has it"


def test_a_restart_of_the_same_size_goes_on_within_the_rest():
    _, state = take(loaders(3), 3)
    whole, _ = take(resumed(2, state))
    part, later = take(resumed(2, state), 4)
    rest, _ = take(resumed(2, later))
    assert part + rest == whole


def test_two_changes_without_a_step_in_between():
    first, state = take(loaders(3), 3)
    ranks = resumed(2, state)
    rest, _ = take(resumed(4, ranks[0].state_dict()))
    assert set(first) | set(rest) == set(range(SIZE))
    assert not set(first) & set(rest[: SIZE - len(first)])


def test_an_epoch_that_nobody_can_divide_is_refused():
    data = TensorDataset(torch.arange(SIZE))
    _, state = take(loaders(3), 3)
    alone = ResumableLoader(DataLoader(data, batch_size=BATCH, shuffle=True))
    with pytest.raises(TypeError, match="DistributedSampler"):
        alone.load_state_dict(state)
