"""Accelerate, as its users write it: nothing in it names a rank, a device or a precision.

everstep run accelerate launch --multi_gpu --mixed_precision bf16 train_accelerate.py
everstep run --nproc-per-node 2 accelerate launch --cpu train_accelerate.py        # two ranks without a GPU
"""

import argparse

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    args = parser.parse_args()

    accelerator = Accelerator()
    torch.manual_seed(0)
    x = torch.randn(64, 8)
    loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8, shuffle=True)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    step = 0
    while step < args.steps:
        for inputs, targets in loader:
            with accelerator.accumulate(model):
                loss = torch.nn.functional.mse_loss(model(inputs), targets)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            accelerator.print(f"step {step} loss {loss.item():.4f}")
            step += 1
            if step == args.steps:
                break
    accelerator.print(f"{accelerator.num_processes} ranks, {accelerator.mixed_precision}, {accelerator.device.type}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
