"""SIGKILL at random moments while checkpoints are written by two nodes and committed. See persist_nursery."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from persisting import Kept, ask, commit_args, killed_after, snapshot, tensors, write_args

from everstep.checkpoint.persist import scan
from everstep.checkpoint.persist.read.reading import load_into


def torture(root, seed, rounds, limit_s):
    script = Path(__file__).parents[1] / "persist_nursery.py"
    done = subprocess.run(
        [sys.executable, str(script), str(root), str(seed), str(rounds)],
        capture_output=True,
        text=True,
        timeout=limit_s,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_a_kill_at_any_moment_leaves_older_checkpoints_whole_and_no_half_one(tmp_path):
    """What each kill hits depends on how fast the machine is; that is judged in the soak, with many of them."""
    hits = torture(tmp_path / "root", seed=3, rounds=6, limit_s=150)
    assert hits["write"] + hits["commit"] + hits["committed"] >= 2


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", [1, 2])
def test_a_hundred_kills(tmp_path, seed):
    hits = torture(tmp_path / "root", seed=seed, rounds=80, limit_s=1100)
    assert hits["write"] >= 20
    assert hits["commit"] >= 20
    assert hits["committed"] >= 20


@pytest.mark.soak
def test_the_real_process_killed_while_it_starts_and_writes(tmp_path):
    state = {"model": tensors(0, *[(400, 400)] * 8)}
    fds = [snapshot(state, step) for step in range(2)]
    assert ask(write_args(tmp_path, 0, fds[:1]), fds[:1])["why"] == ""
    assert ask(commit_args(tmp_path, 0))["why"] == ""
    killed = [killed_after(write_args(tmp_path, 1, fds[1:]), fds[1:], 0.3 * number) for number in range(8)]
    assert killed[0]
    answer = ask(write_args(tmp_path, 1, fds[1:]), fds[1:])
    assert answer["why"] == ""
    assert ask(commit_args(tmp_path, 1))["why"] == ""
    assert [one.step for one in scan(str(tmp_path))] == [0, 1]
    kept = Kept()
    assert load_into(scan(str(tmp_path))[1].path, {"model": kept}, rank=0, world_size=1).step == 1
    for fd in fds:
        os.close(fd)
