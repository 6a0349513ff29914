"""Steps on a device, kills itself, and is resumed: how long each stage from the kill to the next step takes.

    everstep run ... restore_program.py DEVICE STATE_GB FOLDER NUM_KILLS

Appends one JSON object per life to FOLDER/lives.jsonl; times are of the machine's monotonic clock.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import everstep
from everstep.worker.snapshots.memory import pinning
from gpu_programs.gpu_model import Work, bytes_of, model_of, optimizer_of, synchronize, tensors_of

_STEPS_PER_LIFE = 8
_PATIENCE_S = 60.0


def main() -> None:
    device, state_gb, folder, num_kills = sys.argv[1], float(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4])
    life: dict[str, Any] = {"generation": int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")), "pid": os.getpid()}
    life |= {"entered": time.monotonic(), "was_initialized": torch.cuda.is_initialized()}
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    torch.ones(8, device=device).sum().item()
    life["context"] = time.monotonic()
    model = model_of(state_gb, device)
    optimizer = optimizer_of(model)
    synchronize(device)
    life["built"] = time.monotonic()
    state = everstep.State(model=model, optimizer=optimizer)
    synchronize(device)
    life |= {"restored": time.monotonic(), "resumed": state.resumed, "from_step": state.step}
    for pinned in pinning._of.values():
        life["locked_bytes"] = pinned.num_bytes
    work = Work(device, 0.02 if device == "cpu" else 0.1)
    life["ready"] = time.monotonic()
    for num_done, step in enumerate(state.steps(1000), 1):
        work()
        optimizer.step()
        synchronize(device)
        if num_done == 1:
            life |= {"stepped": time.monotonic(), "size": bytes_of(model, optimizer), "first": step}
            if state.resumed:
                life |= _copies(device, model, optimizer)
        if num_done >= _STEPS_PER_LIFE and (_is_kept(state) or time.monotonic() - life["ready"] > _PATIENCE_S):
            life |= {"ended": time.monotonic(), "last": step}
            with (folder / "lives.jsonl").open("a") as file:
                file.write(json.dumps(life) + "\n")
            if life["generation"] >= num_kills:
                break
            time.sleep(0.3)
            (folder / "killed").write_text(str(time.monotonic()))
            os.kill(os.getpid(), signal.SIGKILL)


def _is_kept(state: everstep.State) -> bool:
    """Large memory for snapshots takes a while to be made: the first life waits for it."""
    return state._snapshots is None or state._snapshots._published_step is not None


def _copies(device: str, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, float]:
    """The same bytes by `copy_`, from memory that torch page-locked and from memory as it comes."""
    largest = max(tensors_of(model, optimizer), key=lambda each: each.nbytes).detach()
    rates = {}
    for name, is_locked in (("locked", device != "cpu"), ("plain", False)):
        source = torch.empty_like(largest, device="cpu", pin_memory=is_locked)
        source.copy_(largest)
        target = torch.empty_like(largest)
        took = []
        for _ in range(6):
            synchronize(device)
            began = time.perf_counter()
            target.copy_(source, non_blocking=True)
            synchronize(device)
            took.append(time.perf_counter() - began)
        rates[f"{name}_rate"] = largest.nbytes / min(took[1:])
    return rates


if __name__ == "__main__":
    main()
