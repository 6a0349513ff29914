"""DeepSpeed, as its users write it: the launcher's --local_rank, and a config file.

everstep run deepspeed --num_gpus 2 train_deepspeed.py --deepspeed_config zero.json
"""

import argparse

import deepspeed
import torch


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--local_rank", type=int, required=True)
    parser.add_argument("--steps", type=int, default=20)
    parser = deepspeed.add_config_arguments(parser)
    args = parser.parse_args()

    deepspeed.init_distributed()
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    engine, _, _, _ = deepspeed.initialize(args=args, model=model, model_parameters=model.parameters())
    kind = next(engine.module.parameters()).dtype
    for step in range(args.steps):
        x = torch.randn(8, 8, device=engine.device)
        loss = torch.nn.functional.mse_loss(engine(x.to(kind)).float(), x.sum(1, keepdim=True))
        engine.backward(loss)
        engine.step()
        if engine.global_rank == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    print(f"rank {engine.global_rank} of {engine.world_size}, --local_rank={args.local_rank}", flush=True)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
