"""Writes a checkpoint with FSDP2 on two gloo ranks and reads it with two, one and four. Run by test_persist_dcp.

One interpreter that imports torch once and forks the ranks of each world. Prints one line per rank.
"""

import hashlib
import os
import sys
import tempfile
import traceback
from pathlib import Path

import torch
import torch._dynamo  # before the forks: the first optimizer imports it
import torch.distributed as dist
from persisting import ask, write_args
from torch.distributed.checkpoint import load as dcp_load
from torch.distributed.fsdp import fully_shard

from everstep.checkpoint import arena
from everstep.checkpoint.packing import Packer, Target
from everstep.checkpoint.persist.read.reading import load_into
from everstep.checkpoint.persist.store.committing import commit
from everstep.worker.digests import random_state

STEP = 7


class Position:
    """State of the program that is no tensor."""

    def __init__(self) -> None:
        self.at = 0

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


def build(world, *, sharded=True):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(10, 33), torch.nn.GELU(), torch.nn.Linear(33, 3))
    if not sharded:
        return model, torch.optim.AdamW(model.parameters(), lr=0.01), Position()
    mesh = torch.distributed.init_device_mesh("cpu", (world,))
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model, torch.optim.AdamW(model.parameters(), lr=0.01), Position()


def train(model, optimizer, position, steps):
    for _ in range(steps):
        torch.manual_seed(100 + position.at)
        optimizer.zero_grad()
        model(torch.randn(8, 10)).square().mean().backward()
        optimizer.step()
        position.at += 1


def digest(model, optimizer):
    """Of the whole tensors, whatever their shards."""
    found = hashlib.sha256()
    states = [*model.state_dict().values()]
    for _, state in sorted(optimizer.state_dict()["state"].items()):
        states += [state[key] for key in sorted(state)]
    for tensor in states:
        whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
        found.update(whole.detach().contiguous().numpy().tobytes())
    return found.hexdigest()[:16]


def write_rank(rank, world, root):
    model, optimizer, position = build(world)
    train(model, optimizer, position, 3)
    parts = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "position": position.state_dict()}
    parts |= {"everstep.random": random_state.capture(), "everstep.ddp_order": None}
    packed = Packer().pack(parts)
    fd = arena.create(arena.arena_bytes(packed.num_bytes), rank=rank, world_size=world)
    mine = arena.Arena(fd)
    mine.publish(*Target(mine.buffer(mine.begin(STEP, 0))).write(packed))
    # By a process that is in no group, as in a run.
    answer = ask(write_args(root, STEP, [fd], first_rank=rank, world_size=world), [fd])
    assert answer["why"] == "", answer
    dist.barrier()
    if rank == 0:
        commit(root, step=STEP, world_size=world, keep=1)
    dist.barrier()
    before = digest(model, optimizer)
    train(model, optimizer, position, 1)
    return before, digest(model, optimizer)


def read_rank(rank, world, root):
    model, optimizer, position = build(world)
    objects = {"model": model, "optimizer": optimizer, "position": position}
    loaded = load_into(
        f"{root}/step-{STEP:010d}",
        objects,
        rank=rank,
        world_size=world,
    )
    assert (loaded.step, position.at) == (STEP, 3), loaded
    assert (loaded.resharded, loaded.random is None) == (world != 2, world != 2), loaded
    before = digest(model, optimizer)
    train(model, optimizer, position, 1)
    return before, digest(model, optimizer)


def whole_rank(rank, world, root):
    """Not sharded any more; with as many ranks as before in one of the runs."""
    model, optimizer, position = build(world, sharded=False)
    objects = {"model": model, "optimizer": optimizer, "position": position}
    loaded = load_into(f"{root}/step-{STEP:010d}", objects, rank=rank, world_size=world)
    assert loaded.resharded, loaded
    before = digest(model, optimizer)
    train(model, optimizer, position, 1)
    return before, digest(model, optimizer)


def dcp_rank(rank, world, root):
    """torch.distributed.checkpoint alone reads it, with its own collectives."""
    model, optimizer, position = build(world)
    train(model, optimizer, position, 1)  # so that the optimizer has a state to load into
    states = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    dcp_load(states, checkpoint_id=f"{root}/step-{STEP:010d}")
    model.load_state_dict(states["model"])
    return digest(model, optimizer), ""


def run_world(act, world, root):
    sys.stdout.flush()
    with tempfile.TemporaryDirectory() as folder:
        pids = []
        for rank in range(world):
            pid = os.fork()
            if pid == 0:
                run_rank(act, rank, world, root, folder)
            pids.append(pid)
        return [os.waitpid(pid, 0)[1] for pid in pids] == [0] * world


def run_rank(act, rank, world, root, folder):
    try:
        torch.set_num_threads(1)
        store = dist.FileStore(str(Path(folder) / "store"), world)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
        said = (act.__name__, world, rank, *act(rank, world, root))
        os.write(1, (" ".join(map(str, said)) + "\n").encode())
        dist.destroy_process_group()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)


if __name__ == "__main__":
    checkpoints = sys.argv[1]
    plan = [
        (write_rank, 2),
        (read_rank, 2),
        (read_rank, 1),
        (read_rank, 4),
        (whole_rank, 2),
        (dcp_rank, 2),
        (dcp_rank, 1),
    ]
    sys.exit(0 if all(run_world(act, world, checkpoints) for act, world in plan) else 1)
