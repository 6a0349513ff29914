"""A training whose whole step is one captured graph, and one that is compiled, each with a snapshot of every step.

    everstep run ... graphs_program.py KIND DEVICE OUT

Compares each snapshot with what the parameters are when it is published: a graph steps an optimizer that nobody sees.
"""

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

import everstep
from everstep.checkpoint import arena as arenas
from everstep.checkpoint.stored import Stored
from everstep.worker.link.runtime import current
from gpu_programs.gpu_model import synchronize
from gpu_running.part import Report

_STEPS = 30


def network(device: str) -> nn.Module:
    return nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(512, 512), nn.GELU()))).to(device)


def captured(device: str) -> tuple[nn.Module, torch.optim.Optimizer, Callable[[], None]]:
    """As torch's own documentation captures a whole step."""
    model = network(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, capturable=True)
    batch = torch.randn(64, 512, device=device)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        (model(batch) - batch).square().mean().backward()
        optimizer.step()

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return model, optimizer, graph.replay


def compiled(device: str) -> tuple[nn.Module, torch.optim.Optimizer, Callable[[], None]]:
    model = network(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    fast = torch.compile(model) if device != "cpu" else model
    batch = torch.randn(64, 512, device=device)

    def step() -> None:
        (fast(batch) - batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return model, optimizer, step


def main() -> None:
    kind, device, report = sys.argv[1], sys.argv[2], Report(Path(sys.argv[3]))
    if device != "cpu":
        torch.cuda.set_device(device)
    model, optimizer, step = {"captured": captured, "compiled": compiled}[kind](device)
    state = everstep.State(model=model, optimizer=optimizer)
    state.begin()
    took: list[float] = []
    num_right = num_seen = 0
    for number in range(_STEPS):
        step()
        synchronize(device)
        before = {name: value.detach().cpu().clone() for name, value in model.state_dict().items()}
        began = time.perf_counter()
        state.complete_step()
        took.append(time.perf_counter() - began)
        held = _held(number)
        if held is not None:
            num_seen += 1
            num_right += all(torch.equal(held[name].cpu(), value) for name, value in before.items())
    state.finish()
    report.figure(f"{kind}: snapshots that were looked at", num_seen, goal=">= 10")
    report.figure(f"{kind}: all of them hold the state of their step", num_right == num_seen, goal="is true")
    report.figure(f"{kind}: complete_step", statistics.median(took) * 1e3, "ms")


def _held(step: int) -> dict[str, torch.Tensor] | None:
    """The model in the snapshot of this step, once it is published."""
    runtime = current()
    assert runtime is not None
    until = time.monotonic() + 2
    while time.monotonic() < until:
        fds = state_arenas()
        for fd in fds:
            found = [one for one in arenas.inspect(fd).snapshots if one.step == step]
            if found:
                memory = arenas.Arena(fd).buffer(found[0].buffer)
                stored = Stored(memory, found[0].length, found[0].skeleton_bytes, found[0].skeleton_crc)
                loaded: dict[str, torch.Tensor] = stored.load("model")
                return loaded
        time.sleep(0.002)
    return None


def state_arenas() -> list[int]:
    """Memory for snapshots that this process has."""
    return [
        int(path.name)
        for path in Path("/proc/self/fd").iterdir()
        if path.is_symlink() and "everstep-arena" in str(path.readlink())
    ]


if __name__ == "__main__":
    main()
