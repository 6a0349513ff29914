"""Kills what writes and commits checkpoints, again and again, and looks at what is left. Run by test_persist_kills.

One interpreter imports torch once; every writer and committer is a fork of it. Two nodes write at the same time. After
each kill: what `scan` names is whole to the last byte and is what was in memory, and nothing that was there is lost.
Prints how many kills hit which act, as JSON.
"""

import json
import os
import random
import signal
import sys
import time

import torch
from persisting import Kept, snapshot, tensors

from everstep.checkpoint.persist import scan
from everstep.checkpoint.persist.form import form
from everstep.checkpoint.persist.read.reading import load_into
from everstep.checkpoint.persist.read.verifying import verify
from everstep.checkpoint.persist.store.committing import commit
from everstep.checkpoint.persist.store.storage import FolderStorage
from everstep.checkpoint.persist.write.writing import write

SIZES = [(64, 1024)] * 6 + [(300,)] * 20 + [(1024, 1500)]
KEEP = 2


def state_of(rank, step):
    """The first half never changes; one tensor is the same on both ranks."""
    frozen, changing = tensors(0, *SIZES), tensors(step, *SIZES)
    own = tensors(1000 + step * 2 + rank, (500, 77))
    return {"model": {**{f"f{k}": v for k, v in frozen.items()}, **changing}, "own": own, "at": {"step": step}}


def forked(act, *arguments):
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        try:
            torch.set_num_threads(1)
            act(*arguments)
            os._exit(0)
        except BaseException as error:
            os.write(2, f"{act.__name__}: {type(error).__name__}: {error}\n".encode())
            os._exit(1)
    return pid


def ended(pids, within_s):
    """Wait; kill those that live after `within_s`. How many were killed, and how many ended well."""
    deadline, left, killed, good = time.monotonic() + within_s, set(pids), 0, 0
    while left:
        for pid in list(left):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                left.discard(pid)
                good += status == 0
        if left and time.monotonic() > deadline:
            for pid in left:
                os.kill(pid, signal.SIGKILL)
                killed += 1
            deadline = float("inf")
        time.sleep(0.0005)
    return killed, good


def write_rank(root, step, rank, fd):
    write(root, step=step, generation=0, world_size=2, arenas={rank: fd})


def commit_step(root, step):
    commit(root, step=step, world_size=2, keep=KEEP)


def check(root, known):
    """Everything that is named is whole, and nothing that was named is gone, but by retention."""
    found = [one.step for one in scan(root)]
    for step in found:
        problems = verify(root, step)
        assert not problems, (step, problems)
        kept = {"model": Kept(), "own": Kept(), "at": Kept()}
        rank = step % 2
        load_into(f"{root}/{form.step_name(step)}", kept, rank=rank, world_size=2)
        wanted = state_of(rank, step)
        assert kept["at"].state == wanted["at"]
        for part in ("model", "own"):
            assert all(torch.equal(wanted[part][name], value) for name, value in kept[part].state.items())
    lost = [step for step in known[-KEEP:] if step not in found and len([s for s in found if s > step]) < KEEP]
    assert not lost, (known, found)
    return found


def main(root, seed, rounds):
    choose = random.Random(seed)
    known, hits = [], {"write": 0, "commit": 0, "committed": 0}
    usual_s = {"write": 0.2, "commit": 0.05}
    for step in range(rounds):
        fds = [snapshot(state_of(rank, step), step, rank=rank, world_size=2) for rank in range(2)]
        is_left_alone = {"write": step == 0 or choose.random() < 0.5, "commit": step == 0 or choose.random() < 0.4}
        began = time.monotonic()
        within_s = 60 if is_left_alone["write"] else choose.uniform(0, 1.3 * usual_s["write"])
        killed, good = ended([forked(write_rank, root, step, rank, fd) for rank, fd in enumerate(fds)], within_s)
        if not killed:
            usual_s["write"] = time.monotonic() - began
        hits["write"] += killed
        assert killed or good == 2
        known = check(root, known)
        began = time.monotonic()
        within_s = 60 if is_left_alone["commit"] else choose.uniform(0, 1.3 * usual_s["commit"])
        killed_too, good = ended([forked(commit_step, root, step)], within_s)
        if good:
            usual_s["commit"] = time.monotonic() - began
        hits["commit"] += killed_too
        hits["committed"] += good
        assert killed or killed_too or good == 1
        known = check(root, known)
        for fd in fds:
            os.close(fd)
    clean_up(root, rounds)
    print(json.dumps(hits), flush=True)


def clean_up(root, step):
    """A last one that nothing disturbs; afterwards nothing lies about."""
    for name in FolderStorage(root).names(form.WRITING):  # markers of the killed count for minutes
        for file in os.scandir(f"{root}/{form.WRITING}/{name}") if form.draft_of(name) else ():
            os.utime(file.path, (0, 0))
    fds = [snapshot(state_of(rank, step), step, rank=rank, world_size=2) for rank in range(2)]
    assert ended([forked(write_rank, root, step, rank, fd) for rank, fd in enumerate(fds)], 60) == (0, 2)
    assert ended([forked(commit_step, root, step)], 60) == (0, 1)
    assert check(root, [])[-1] == step
    storage = FolderStorage(root)
    used = set()
    for one in scan(root):
        for rank in range(2):
            name = f"{form.step_name(one.step)}/{form.rank_name(rank)}"
            used |= set(form.unseal(name, storage.read(name), form.RankPart).objects)
    there = {name for folder in storage.names(form.OBJECTS) for name in storage.names(f"{form.OBJECTS}/{folder}")}
    assert there == used, (len(there), len(used))
    assert storage.names(form.WRITING) == [], storage.names(form.WRITING)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
