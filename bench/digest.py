"""What digests and told numbers cost: a digest of the demo model against its step, the speed on one large tensor, and
the calls that a program makes in every step.

    python bench/digest.py [--steps 40] [--batch-size 8] [--width 128] [--layers 4] [--large MIB] [--every N] [--json]

The model and its step are those of examples/train_gpt.py in one process, without communication: a real step takes
longer, so the share is too high rather than too low. A digest is all of it: finding the parameters, the sums, folding,
the frame and its way into the agent's socket. Medians of wall time; step and digest take turns.
"""

import argparse
import importlib.util
import json
import socket
import statistics
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

import everstep
from everstep.agent.memory.board import Board
from everstep.core.state.policy import Policy
from everstep.wire import local
from everstep.worker.digests import replicas
from everstep.worker.digests.digest import Digests, weigh
from everstep.worker.link import runtime
from everstep.worker.link.runtime import Runtime
from everstep.worker.process.board import BoardLine

EXAMPLE = Path(__file__).parents[1] / "examples" / "train_gpt.py"


def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("train_gpt", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def median_s(act: Callable[[], object], count: int) -> float:
    took = []
    for _ in range(count):
        began = time.perf_counter()
        act()
        took.append(time.perf_counter() - began)
    return statistics.median(took)


def measure_model(given: argparse.Namespace, link: socket.socket) -> dict[str, Any]:
    demo = example()
    model = demo.GPT(given.width, given.layers, num_heads=4, dropout=0.1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    sampler = demo.Sampler(demo.standard_library(), given.batch_size, 0, 0)

    def step() -> None:
        tokens, targets = sampler.next_batch()
        torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), targets.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()

    digests = Digests(_Teller(link), 1)
    objects = (model, optimizer)
    for _ in range(5):
        step()
    times: dict[str, list[float]] = {"step": [], "digest": []}
    for number in range(given.steps):  # in turns, so that a busy machine is busy for both
        times["step"].append(median_s(step, 1))
        taken = median_s(lambda at=number: digests.after_step(at, replicas.of_state(objects, [])), 1)  # type: ignore[misc]
        times["digest"].append(taken)
    step_s, digest_s = statistics.median(times["step"]), statistics.median(times["digest"])
    return {
        "parameter_bytes": sum(p.numel() * p.element_size() for p in model.parameters()),
        "step_s": step_s,
        "digest_s": digest_s,
        "every": given.every,
        "share_of_step": digest_s / given.every / step_s,
    }


def measure_large(mebibytes: int) -> dict[str, Any]:
    tensor = torch.randn(mebibytes << 18)
    weigh(tensor)
    took_s = median_s(lambda: weigh(tensor), 7)
    return {"bytes": tensor.numel() * 4, "took_s": took_s, "bytes_per_s": tensor.numel() * 4 / took_s}


def measure_calls(made: Runtime) -> dict[str, float]:
    """Seconds per call, as a program makes them within a run and outside of one."""
    count, loss = 20_000, torch.tensor(1.0, requires_grad=True)

    def each(act: Callable[[], object]) -> float:
        def many() -> None:
            for _ in range(count):
                act()

        return median_s(many, 5) / count

    def paused() -> None:
        with everstep.paused():
            pass

    calls: dict[str, Callable[[], object]] = {
        "step()": everstep.step,
        "step(loss=float)": lambda: everstep.step(loss=1.0),
        "step(loss=tensor, grad_norm=float)": lambda: everstep.step(loss=loss, grad_norm=0.5),
        "with paused()": paused,
    }
    outside = {f"{name}, no run": each(act) for name, act in calls.items()}
    runtime.install(made)
    return {**outside, **{name: each(act) for name, act in calls.items()}}


class _Teller:
    """Sends as the runtime does; the bench reads the other end empty."""

    rank = 0

    def __init__(self, link: socket.socket) -> None:
        self._link = link

    def tell(self, frame: dict[str, Any]) -> None:
        self._link.send(local.pack(frame))


def _reader(link: socket.socket) -> None:
    while link.recv(1 << 20):
        pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--large", type=int, default=256, metavar="MIB")
    parser.add_argument("--every", type=int, default=Policy().digest_every)
    parser.add_argument("--threads", type=int, default=1, help="torch's; a rank has 1 unless the user says otherwise")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    found = measure(given)
    if given.json:
        print(json.dumps(found))
        return
    model, large = found["model"], found["large"]
    print(
        f"demo model, {model['parameter_bytes'] / 2**20:.1f} MiB of parameters, a digest every {model['every']} steps"
    )
    print(f"  step   {model['step_s'] * 1e3:9.2f} ms\n  digest {model['digest_s'] * 1e3:9.2f} ms")
    print(f"  share  {model['share_of_step']:9.3%} of step time")
    print(f"{large['bytes'] / 2**20:.0f} MiB in one tensor: {large['bytes_per_s'] / 2**30:.1f} GiB/s")
    for name, seconds in found["calls"].items():
        print(f"  {name:<45} {seconds * 1e6:7.2f} us")


def measure(given: argparse.Namespace) -> dict[str, Any]:
    near, far = socket.socketpair()
    reader = threading.Thread(target=_reader, args=(far,), daemon=True)
    reader.start()
    board = Board(1)
    board.reset(0, rank=0, generation=0)
    assignment = {"rank": 0, "local_rank": 0, "world_size": 2, "generation": 0}
    made = Runtime(near, assignment, BoardLine(board.fd, 0), [])
    return {
        "torch": torch.__version__,
        "python": sys.version.split()[0],
        "model": measure_model(given, near),
        "large": measure_large(given.large),
        "calls": measure_calls(made),
    }


if __name__ == "__main__":
    main()
