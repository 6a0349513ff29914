"""DeepSpeed with ZeRO that loses no step: the lines of everstep's are (1), (2) and (3).

    everstep run --nproc-per-node 2 examples/train_deepspeed.py

Kill a rank while it runs (`everstep drill kill-rank 1`): it goes on at the very next step, with the same losses.
Without CUDA, DeepSpeed compiles an operator when it first runs on a machine: two minutes.
"""

import argparse

import deepspeed
import torch
from torch.utils.data import DataLoader, DistributedSampler

from everstep.integrations.data import ResumableLoader  # (1)
from everstep.integrations.deepspeed import state_of

CONFIG = {
    "train_micro_batch_size_per_gpu": 8,
    "gradient_clipping": 1.0,
    "bf16": {"enabled": True},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
    "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 20, "warmup_max_lr": 1e-3}},
    "zero_optimization": {"stage": 1},
    "zero_force_ds_cpu_optimizer": False,
    "steps_per_print": 1 << 30,
}


class Sums(torch.utils.data.Dataset):
    """Rows of numbers and their sums: something that can be learnt."""

    def __len__(self):
        return 4096

    def __getitem__(self, index):
        x = torch.randn(16, generator=torch.Generator().manual_seed(index))
        return x.bfloat16(), x.sum().bfloat16()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=200)
    args = parser.parse_args()
    deepspeed.init_distributed()
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(16, 256), torch.nn.GELU(), torch.nn.Dropout(0.1), torch.nn.Linear(256, 1)
    )
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=CONFIG)

    data = ResumableLoader(DataLoader(Sums(), batch_size=8, sampler=DistributedSampler(Sums(), seed=1)))
    state = state_of(engine, data=data)  # (2)
    for step, (x, total) in zip(state.steps(args.steps), data.forever(), strict=False):  # (3)
        predicted = engine(x.to(engine.device)).squeeze(-1)
        loss = torch.nn.functional.mse_loss(predicted.float(), total.to(engine.device).float())
        engine.backward(loss)
        engine.step()
        print(f"step: {step:5}  rank: {engine.global_rank}  loss: {loss.item():.9f}", flush=True)


if __name__ == "__main__":
    main()
