"""torchtitan's own training program that loses no step: the only line of everstep's is the one with `attach`.

    everstep run --nproc-per-node 2 examples/train_torchtitan.py --module llama3 --config llama3_debugmodel

It takes the arguments of torchtitan's `train.py`, which this is. Kill a rank while it runs (`everstep drill kill-rank
1`): it goes on at the very next step. It needs accelerators, as torchtitan does.
"""

import torch
from torchtitan.config import ConfigManager
from torchtitan.tools.logging import init_logger

from everstep.integrations.torchtitan import attach


def main():
    init_logger()
    trainer = attach(ConfigManager().parse_args().build())
    try:
        trainer.train()
    finally:
        trainer.close()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
