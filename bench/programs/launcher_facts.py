"""What a rank can know of its launcher: arguments, environment, and what accelerate or DeepSpeed made of them.

python launcher_facts.py [--with accelerate|deepspeed] ...      # writes one file per process to $FACTS
"""

import json
import os
import re
import sys
from pathlib import Path
from typing import Any


def facts() -> dict[str, Any]:
    found: dict[str, Any] = {"arguments": sys.argv, "threads": None}
    found |= {f"env.{name}": value for name, value in os.environ.items()}
    import torch

    found["threads"] = torch.get_num_threads()
    if "accelerate" in sys.argv:
        found |= of_accelerate()
    if "deepspeed" in sys.argv:
        import deepspeed

        deepspeed.init_distributed("gloo")
    if torch.distributed.is_initialized():
        total = torch.ones(1)
        torch.distributed.all_reduce(total)
        found |= {"world": torch.distributed.get_world_size(), "sum of ones": total.item()}
        torch.distributed.destroy_process_group()
    return found


def of_accelerate() -> dict[str, Any]:
    from accelerate import Accelerator

    made = Accelerator()
    names = ("mixed_precision", "gradient_accumulation_steps", "num_processes", "process_index", "distributed_type")
    found = {f"accelerate.{name}": str(getattr(made, name)) for name in names}
    for name in ("fsdp_plugin", "deepspeed_plugin", "dynamo_plugin"):
        plugin = getattr(made.state, name, None)
        found[f"accelerate.{name}"] = re.sub(r" at 0x[0-9a-f]+", "", str(plugin))
    return found


if __name__ == "__main__":
    rank = os.environ.get("RANK", "-")
    text = json.dumps(facts())
    Path(os.environ["FACTS"], rank).write_text(text)
