"""A program that writes snapshots of its own making without torch, so that tests are about agents, and start at once.

It goes up to the step in its first argument, and on while there is a file named "go on" in its folder. After a restart
it says whether the bytes that it was given are those that it wrote.
"""

WRITER = """
import hashlib, os, sys, time
from everstep.checkpoint import arena
from everstep.worker.link import runtime
r = runtime.current()
SIZE, NUM_BUFFERS = 300_000, 6
def content(step):
    return hashlib.sha256(f"{r.rank} {step}".encode()).digest() * (SIZE // 32)
if r.resume_step is None:
    step = -1
else:
    step = r.resume_step
    found = [(fd, c, s) for fd in r.arenas for c in [arena.inspect(fd)] for s in c.snapshots if s.step == step]
    fd, c, s = max(found, key=lambda each: each[2].generation)
    data = os.pread(fd, s.length, arena.offset_of(c, s.buffer))
    print("restored", step, data[:-4] == content(step), len(found), flush=True)
mine = None
if r.arenas and arena.inspect(r.arenas[-1]).capacity_bytes >= SIZE + 4:
    mine = arena.Arena(r.arenas[-1])
else:
    fd = r.request_arena(arena.arena_bytes(SIZE + 4, NUM_BUFFERS))
    arena.format_arena(fd, rank=r.rank, world_size=r.world_size, num_buffers=NUM_BUFFERS)
    mine = arena.Arena(fd)
last = int(sys.argv[1])
while True:
    if step < last or os.path.exists("go on"):
        step += 1
        r.board.set_counts_own_steps()
        index = mine.begin(step, r.generation, lambda step: (step + 1) % r.digest_every == 0, keep_previous=True)
        if index is not None:
            data = content(step) + b"skel"
            mine.buffer(index)[:len(data)] = data
            mine.publish(len(data), 4, 0)
            r.board.set_published_step(step)
        r.board.step_done(step, time.time())
        print("step", step, flush=True)
    time.sleep(0.01)
"""
