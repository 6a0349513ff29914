"""The training of bench/incidents.py: three replicas, everstep's State, and faults that the bench puts into a file.

`$EVERSTEP_BENCH_DIR/fault.json` holds one fault: its `kind`, the `ranks` that have it, or the `slot` of the machine
that has it for as long as `agent` (the pid of that machine's agent) is the parent, the `raises` and `says` of an
exception, and `times`: how often it happens, over all starts. What is real is made here: writes until the filesystem
is full, requests to a service, reads from a mount, loss that is not a number.
"""

import json
import math
import os
import signal
import time
import urllib.request
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import everstep

WIDTH = 64
PAUSE_S = 0.02
LEAST_STEPS = 5
"""Between two faults of the same kind: the job moves on before it fails again."""

FOLDER = Path(os.environ["EVERSTEP_BENCH_DIR"])
KINDS = {"OSError": OSError, "RuntimeError": RuntimeError}


def main() -> None:
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, 8)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    state = everstep.State(model=model, optimizer=optimizer)
    raises_on_nan = os.environ.get("BENCH_PROGRAM") == "raises-on-nan"
    for done, step in enumerate(state.steps(1_000_000), 1):
        loss = model(torch.ones(8, WIDTH)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        everstep.step(loss=loss.item())
        if raises_on_nan and not math.isfinite(loss.item()):
            raise FloatingPointError(f"loss became {loss.item()} at step {step}")
        if done >= LEAST_STEPS:
            _suffer(rank)
        time.sleep(PAUSE_S)
        print("step", step, flush=True)


def _suffer(rank: int) -> None:
    path = FOLDER / "fault.json"
    if not path.exists():
        return
    fault: dict[str, Any] = json.loads(path.read_text())
    if rank not in fault.get("ranks", [rank]) or fault.get("agent", os.getppid()) != os.getppid():
        return
    if not _is_left(fault.get("times", 1_000)):
        return
    match fault["kind"]:
        case "raise":
            raise KINDS[fault["raises"]](fault["says"])
        case "fill":
            with (Path(fault["path"]) / f"shard-{rank}").open("ab") as shard:
                while True:
                    shard.write(b"\1" * 65536)
        case "request":
            urllib.request.urlopen(fault["url"], timeout=10).read()
        case "read":
            (Path(fault["path"]) / "shard-0").read_bytes()
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        case other:
            raise ValueError(f"no fault {other!r}")


def _is_left(times: int) -> bool:
    """Take one of them; False when all are used up."""
    for number in range(times):
        try:
            os.close(os.open(FOLDER / f"used-{number}", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            continue
        return True
    return False


if __name__ == "__main__":
    main()
