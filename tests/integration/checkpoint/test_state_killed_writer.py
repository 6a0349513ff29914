"""A real SIGKILL in the middle of a real copy, again and again: the arena always holds a whole snapshot."""

import os
import random
import signal
import subprocess
import sys
import time

from everstep.checkpoint import arena
from everstep.checkpoint.arena import Arena

WRITER = """
import sys
from everstep.checkpoint.arena import Arena, held_steps

memory = Arena(int(sys.argv[1]))
step = max(held_steps(memory.fd), default=-1)
print("begun", flush=True)
while True:
    step += 1
    index = memory.begin(step, 0)
    memory.buffer(index)[:] = step.to_bytes(8, "little") * (memory.capacity_bytes // 8)
    memory.publish(memory.capacity_bytes, 8, 0)
"""
NUM_KILLS = 25


def test_writer_killed_at_random_moments() -> None:
    dice = random.Random(7)
    fd = arena.create(arena.arena_bytes(4 << 20), rank=0, world_size=1)
    newest = -1
    num_caught_in_the_middle = 0
    try:
        for _ in range(NUM_KILLS):
            writer = subprocess.Popen(
                [sys.executable, "-c", WRITER, str(fd)], pass_fds=[fd], stdout=subprocess.PIPE, text=True
            )
            with writer:
                assert writer.stdout is not None
                assert writer.stdout.readline() == "begun\n"
                deadline = time.monotonic() + 20
                while max(arena.held_steps(fd), default=-1) <= newest and time.monotonic() < deadline:
                    pass
                end = time.monotonic() + dice.random() * 0.01
                while time.monotonic() < end:
                    pass
                os.kill(writer.pid, signal.SIGKILL)
            held = check(fd)
            assert held, "no complete snapshot is left"
            assert max(held) > newest
            newest = max(held)
            num_caught_in_the_middle += len(held) == 1
        assert num_caught_in_the_middle > 0, "every kill fell between two snapshots: nothing was tested"
    finally:
        os.close(fd)


def check(fd: int) -> tuple[int, ...]:
    memory = Arena(fd)
    for snapshot in memory.snapshots():
        expected = snapshot.step.to_bytes(8, "little") * (memory.capacity_bytes // 8)
        assert memory.buffer(snapshot.buffer) == expected, f"step {snapshot.step} is not what was written"
    memory.close()
    return arena.held_steps(fd)
