"""A small network with dropout on a device, every kernel deterministic; says what its losses and parameters were.

    [everstep run ...] exact_program.py DEVICE NUM_STEPS OUT [KILL_AT ...]

With everstep it kills itself once at each of these steps. Writes OUT when it is done: losses by step, the parameters'
digest, and the next numbers of each generator.
"""

import hashlib
import json
import os
import random
import signal
import sys
from pathlib import Path

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch
from torch import nn

import everstep


class Losses:
    """What a run that was interrupted keeps of its history."""

    def __init__(self) -> None:
        self.values: list[float] = []

    def state_dict(self) -> dict[str, list[float]]:
        return {"values": list(self.values)}

    def load_state_dict(self, state: dict[str, list[float]]) -> None:
        self.values = list(state["values"])


def main() -> None:
    device, num_steps, out, *kills = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), *map(int, sys.argv[4:])
    generation = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    if device == "cpu":  # with two threads, products differ in a last bit once in a dozen runs, also without us
        torch.set_num_threads(1)
    else:
        torch.use_deterministic_algorithms(True)
    torch.manual_seed(3)
    random.seed(3)
    layers = [layer for _ in range(4) for layer in (nn.Linear(256, 256), nn.Dropout(0.2), nn.GELU())]
    model = nn.Sequential(*layers).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = Losses()
    state = everstep.State(model=model, optimizer=optimizer, losses=losses)
    for step in state.steps(num_steps):
        if generation < len(kills) and step == kills[generation]:
            os.kill(os.getpid(), signal.SIGKILL)
        batch = torch.randn(64, 256, device=device) * random.random()
        loss = (model(batch) - batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.values.append(loss.item())
    digest = hashlib.sha256(b"".join(p.detach().cpu().numpy().tobytes() for p in model.parameters())).hexdigest()
    drawn = [random.random(), torch.rand(()).item(), torch.rand((), device=device).item()]
    out.write_text(json.dumps({"losses": losses.values, "digest": digest, "drawn": drawn, "generation": generation}))


if __name__ == "__main__":
    main()
