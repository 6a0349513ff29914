"""torchtitan's Trainer with its llama3 debug model, FSDP2, on CPU and gloo: tokens of our own, its loop as it is."""

import argparse
import dataclasses
import time
from types import SimpleNamespace

import torch
import torch._utils

torch._utils._get_available_device_type = lambda: "cpu"  # torchtitan knows accelerators only
from told import OUT, PACE_S, Steps
from torch.distributed.fsdp import FSDPModule
from torchtitan.components import metrics
from torchtitan.components.dataloader import ParallelAwareDataloader
from torchtitan.components.tokenizer import BaseTokenizer
from torchtitan.distributed import utils as distributed
from torchtitan.models.common.attention import FlexAttention, ScaledDotProductAttention
from torchtitan.models.llama3.config_registry import llama3_debugmodel
from torchtitan.tools import utils

parser = argparse.ArgumentParser()
parser.add_argument("--keep", default="state")
parser.add_argument("--steps", type=int, default=30)
parser.add_argument("--checkpoints", action="store_true")
args = parser.parse_args()
torch.set_num_threads(1)


class Memory:
    """In place of a monitor of a device's memory."""

    device_name, device_capacity = "cpu", 1

    def get_peak_stats(self):
        return SimpleNamespace(
            max_active_gib=0, max_active_pct=0, max_reserved_gib=0, max_reserved_pct=0, num_alloc_retries=0, num_ooms=0
        )

    def reset_peak_stats(self):
        pass


metrics.build_device_memory_monitor = Memory
distributed.set_pg_timeouts = lambda **_: None  # it synchronises a device
utils.get_peak_flops = lambda _name: 1e12


class Tokenizer(BaseTokenizer):
    """None is needed: the data is of tokens."""

    @dataclasses.dataclass(kw_only=True, slots=True)
    class Config(BaseTokenizer.Config):
        """Without options."""

    def __init__(self, config, **_kwargs):
        super().__init__()

    def encode(self, text):
        return [ord(each) % 64 for each in text]

    def decode(self, ids):
        return "".join(map(chr, ids))

    def get_vocab_size(self):
        return 2048


class Tokens(torch.utils.data.IterableDataset):
    """Endless, and knows its place."""

    def __init__(self, rank, length):
        self.at, self._rank, self._length = 0, rank, length

    def __iter__(self):
        while True:
            numbers = torch.Generator().manual_seed(self.at * 100 + self._rank)
            self.at += 1
            x = torch.randint(0, 2048, (self._length + 1,), generator=numbers)
            yield {"input": x[:-1]}, x[1:]

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


class Loader(ParallelAwareDataloader):
    """As torchtitan's own for text."""

    @dataclasses.dataclass(kw_only=True, slots=True)
    class Config(ParallelAwareDataloader.Config):
        """Without options."""

    def __init__(self, config, *, dp_world_size, dp_rank, seq_len, local_batch_size, **_kwargs):
        super().__init__(Tokens(dp_rank, seq_len), dp_rank, dp_world_size, batch_size=local_batch_size)


config = llama3_debugmodel()
del config.model_spec.model.layers[2:]
flex = list(config.model_spec.model.traverse(FlexAttention.Config))
for _, _, owner, name in flex:  # it wants a compiler
    setattr(owner, name, ScaledDotProductAttention.Config())
config.dump_folder = str(OUT / "titan")
config.tokenizer = Tokenizer.Config()
config.dataloader = Loader.Config()
config.training.steps = args.steps
config.training.seq_len = 32
config.training.local_batch_size = 2
config.training.disable_cuda_graphs = True
config.parallelism.spmd_backend = "partial_dtensor"  # what torch 2.13 has
config.debug.seed = 3
config.validator.enable = False
config.checkpoint.enable = args.keep == "own"
config.checkpoint.interval = 5
trainer = config.build()
for part in trainer.model_parts:
    for module in part.modules():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)  # gloo has no other
steps = Steps()
log, train_step = trainer.metrics_processor.log, trainer.train_step


def logging(step, loss, *rest, **more):
    log(step, loss, *rest, **more)
    steps.after(step - 1, loss)


def training(batches):
    steps.before(trainer.step - 1)
    train_step(batches)


trainer.metrics_processor.log, trainer.train_step = logging, training
if args.keep == "state":
    from everstep.integrations.torchtitan import attach

    attach(trainer)
trainer.train()
total = sum(p.to_local().double().sum().item() for part in trainer.model_parts for p in part.parameters())
steps.after(999, total)
trainer.close()
torch.distributed.destroy_process_group()
time.sleep(PACE_S)
