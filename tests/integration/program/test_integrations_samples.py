"""Data over kills: every sample of an epoch once and in order, whatever the loader had fetched ahead."""

import pytest
from real_run import Launcher
from resuming import assert_kills_leave_no_trace

TRAIN = """
import everstep
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler
from torch.nn.parallel import DistributedDataParallel
from everstep.integrations.data import ResumableLoader

class Samples(torch.utils.data.Dataset):
    def __len__(self): return 46
    def __getitem__(self, index):
        return index, torch.full((3,), float(index)) * (1 + (0 if WORKERS else random.random() + torch.rand(()).item()))

dist.init_process_group("gloo")
torch.manual_seed(5)
body = torch.nn.Sequential(torch.nn.Linear(3, 9), torch.nn.Dropout(0.3), torch.nn.Linear(9, 1))
model = DistributedDataParallel(body)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
torch.manual_seed(RANK); random.seed(RANK)
data = ResumableLoader(make_loader(Samples()))
state = everstep.State(model=model, optimizer=optimizer, data=data)
for step, (ids, values) in zip(state.steps(15), data.forever()):
    loss = model(values).square().mean()
    loss.backward(); optimizer.step(); optimizer.zero_grad()
    tell(step, data.epoch, *ids.tolist(), loss.item().hex())
dist.barrier()
end(model.parameters())
dist.destroy_process_group()
"""

PLAIN = """
WORKERS = {workers}
def make_loader(samples):
    return DataLoader(samples, batch_size=4, sampler=DistributedSampler(samples), num_workers=WORKERS)
"""

STATEFUL = """
WORKERS = {workers}
def make_loader(samples):
    from torchdata.stateful_dataloader import StatefulDataLoader
    from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler
    sampler = StatefulDistributedSampler(samples)
    return StatefulDataLoader(samples, batch_size=4, sampler=sampler, num_workers=WORKERS)
"""

KINDS = [
    pytest.param(PLAIN.format(workers=1), id="plain, worker", marks=pytest.mark.soak),
    pytest.param(PLAIN.format(workers=0), id="plain", marks=pytest.mark.soak),
    pytest.param(STATEFUL.format(workers=1), id="stateful, worker", marks=pytest.mark.soak),
    pytest.param(STATEFUL.format(workers=0), id="stateful", marks=pytest.mark.soak),
]


@pytest.mark.parametrize("kind", KINDS)
def test_every_sample_once_over_kills(launcher: Launcher, kind: str) -> None:
    trail = assert_kills_leave_no_trace(launcher, kind + TRAIN, kills=((4, 1), (9, 0)), num_ranks=2)
    for epoch in ("0", "1"):
        samples: list[str] = []
        for rank in range(2):
            lines = [line.split() for line in trail.steps(rank).values()]
            samples += [sample for words in lines if words[1] == epoch for sample in words[2:-1]]
        assert sorted(map(int, samples)) == list(range(46))
