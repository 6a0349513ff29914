"""For tests of the persistent tier: snapshots in real arenas, and the processes that write and commit them."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from everstep.checkpoint import arena
from everstep.checkpoint.packing import Packer, Target

MAIN = [sys.executable, "-m", "everstep.checkpoint.persist"]


class Kept:
    """An object of a State whose state is what it was given."""

    def __init__(self, state: Any = None) -> None:
        self.state = state

    def state_dict(self):
        return self.state

    def load_state_dict(self, state):
        self.state = state


def snapshot(parts: Mapping[str, Any], step: int, *, rank: int = 0, world_size: int = 1, generation: int = 0) -> int:
    """The fd of an arena that holds it; the caller closes it."""
    parts = {"everstep.random": {"rank": rank}, "everstep.ddp_order": None, **parts}
    packed = Packer().pack(parts)
    fd = arena.create(arena.arena_bytes(packed.num_bytes), rank=rank, world_size=world_size)
    mine = arena.Arena(fd)
    index = mine.begin(step, generation)
    assert index is not None
    mine.publish(*Target(mine.buffer(index)).write(packed))
    return fd


def write_args(
    root: object, step: int, fds: Sequence[int], *, first_rank: int = 0, world_size: int | None = None
) -> list[str]:
    ranks = range(first_rank, first_rank + len(fds))
    words = {
        "--root": root,
        "--step": step,
        "--generation": 0,
        "--world-size": world_size or len(fds),
        "--ranks": ",".join(map(str, ranks)),
        "--fds": ",".join(map(str, fds)),
    }
    return ["write", *(str(word) for pair in words.items() for word in pair)]


def commit_args(root: object, step: int, world_size: int = 1, keep: int = 3, *more: str) -> list[str]:
    words = {"--root": root, "--step": step, "--world-size": world_size, "--keep": keep}
    return ["commit", *(str(word) for pair in words.items() for word in pair), *more]


def ask(arguments: Sequence[str], fds: Sequence[int] = (), *, limit_s: float = 60.0, **more: Any) -> dict[str, Any]:
    """What the process answers."""
    done = subprocess.run([*MAIN, *arguments], pass_fds=fds, capture_output=True, text=True, timeout=limit_s, **more)
    assert done.stdout.count("\n") == 1, (done.stdout, done.stderr)
    answer: dict[str, Any] = json.loads(done.stdout)
    assert (done.returncode == 0) == (answer["why"] == ""), (answer, done.stderr)
    return answer


def killed_after(arguments: Sequence[str], fds: Sequence[int], seconds: float) -> bool:
    """Whether SIGKILL hit the process before it had ended."""
    process = subprocess.Popen([*MAIN, *arguments], pass_fds=fds, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        return True
    return False


def tensors(seed: int, *sizes: tuple[int, ...]) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {f"t{i}": torch.randn(size, generator=generator) for i, size in enumerate(sizes)}
