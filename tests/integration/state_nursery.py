"""A process that has torch imported and forks ranks: the launcher of the State tests, in place of everstep's own.

    python state_nursery.py '{"folder": ..., "num_ranks": 3, "num_steps": 40, "kills": 4, "seed": 1, "wrap": "before",
                              "unhurried": false}'

Trains once without everstep and without a fault, then again with a Runtime and SIGKILLs at random moments, and prints
what both did as one JSON object. Each generation resumes at the newest step that all arenas hold, as the controller
decides it. With `unhurried` also a small state is copied while the next step runs; with
`divided` what all ranks hold alike is kept once; with
`slow_copies` those of rank 0 take long, so that not every step is kept. Kills are no further apart than twice `reach`
(not given: all steps) divided by their number.
"""

import hashlib
import json
import mmap
import os
import random
import select
import signal
import socket
import sys
import threading
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import uncompiled  # noqa: F401  # before the forks: the first optimizer asks for the compiler
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import everstep
from everstep.checkpoint import arena
from everstep.wire import local
from everstep.worker.link import runtime
from everstep.worker.process import board
from everstep.worker.snapshots import cadence, copying, dividing
from everstep.worker.snapshots import snapshots as keeper

DEADLINE_S = 100


class Counter:
    """A sampler that would repeat itself if it were not restored."""

    def __init__(self) -> None:
        self.position = 0

    def state_dict(self):
        return {"position": self.position}

    def load_state_dict(self, state):
        self.position = state["position"]


def train(job: dict, rank: int, store: str, log: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=job["num_ranks"])
    torch.manual_seed(job["seed"])
    body = nn.Sequential(nn.Linear(33, 70), nn.GELU(), nn.Dropout(0.2), nn.Linear(70, 33), nn.LayerNorm(33))
    model = DistributedDataParallel(body, bucket_cap_mb=0.01) if job["wrap"] != "after" else body
    optimizer = torch.optim.AdamW(body.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=7, gamma=0.9)
    sampler = Counter()
    torch.manual_seed(100 + rank)
    random.seed(200 + rank)
    np.random.seed(300 + rank)
    kept = {"before": model, "bare": body, "after": body}[job["wrap"]]
    state = everstep.State(model=kept, optimizer=optimizer, scheduler=scheduler, sampler=sampler)
    if job["wrap"] == "after":
        model = DistributedDataParallel(body, bucket_cap_mb=0.01)
    with log.open("a") as lines:
        for step in state.steps(job["num_steps"]):
            sampler.position += 1
            scale = random.random() + np.random.random() + sampler.position / 100
            loss = (model(torch.randn(16, 33)) * scale).square().mean()
            loss.backward()
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            lines.write(f"{step} {loss.item().hex()}\n")
            lines.flush()
    dist.barrier()
    digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in body.parameters())).hexdigest()
    log.with_suffix(".final").write_text(digest)
    if state._snapshots is not None:
        pace = state._snapshots._cadence  # None: killed after the last step's snapshot, so none was left to do
        log.with_suffix(".every").write_text("0" if pace is None else str(pace.every))
    os._exit(0)  # FileStore's destructor waits for its file, which the other rank's has removed


def adapt_quickly(is_slow: bool) -> None:
    cadence.LOOK_EVERY_S, cadence.AHEAD_S, cadence.AGAIN_S = 0.02, 0.1, 0.2
    cadence.NUM_FIRST, cadence.NUM_WAITS, cadence.MAX_EVERY = 1, 3, 4
    if is_slow:
        copy_late()


def copy_late() -> None:
    """A copy ends a while after somebody has begun to wait for it, however long forward and backward take."""
    is_awaited = threading.Event()
    copy = copying._copy_in_chunks

    def copy_then(places, tensors):
        is_awaited.wait()
        time.sleep(0.03)
        copy(places, tensors)

    def telling(wait):
        def tell_and_wait(copier):
            is_awaited.set()
            try:
                return wait(copier)
            finally:
                is_awaited.clear()

        return tell_and_wait

    copying._copy_in_chunks = copy_then
    for name in ("before_change", "settle"):
        setattr(copying.Copier, name, telling(getattr(copying.Copier, name)))


class Ranks:
    """One generation's forked processes, with the memory and the board that outlive them."""

    def __init__(self, job: dict) -> None:
        self.job = job
        self.folder = Path(job["folder"])
        self.arenas: list[list[int]] = [[] for _ in range(job["num_ranks"])]
        self.generation = -1
        self.pids: dict[int, int] = {}
        self.links: dict[int, socket.socket] = {}
        self.board = os.memfd_create("board")

    def start(self, resume_step: int | None, with_runtime: bool = True) -> None:
        self.generation += 1
        os.ftruncate(self.board, 0)
        os.ftruncate(self.board, board.LINE_BYTES * len(self.arenas))
        self.cells = mmap.mmap(self.board, 0)
        for rank in range(len(self.arenas)):
            line = memoryview(self.cells)[rank * board.LINE_BYTES :][: board.LINE_BYTES]
            for cell in ("FIRST_STEP", "LAST_STEP", "PUBLISHED_STEP"):
                line.cast("q")[board.IntCell[cell]] = -1
            ours, theirs = socket.socketpair()
            pid = os.fork()
            if pid == 0:
                ours.close()
                self._be_rank(rank, theirs, resume_step, with_runtime)
            theirs.close()
            self.pids[rank], self.links[rank] = pid, ours

    def _be_rank(self, rank: int, link: socket.socket, resume_step: int | None, with_runtime: bool) -> None:
        code = 1
        try:
            if with_runtime:
                assignment = {"rank": rank, "local_rank": rank, "world_size": len(self.arenas)}
                assignment |= {"generation": self.generation, "resume_step": resume_step, "snapshot_buffers": 5}
                if self.job.get("unhurried"):
                    keeper.SMALL_BYTES = -1
                if self.job.get("slow_copies"):
                    adapt_quickly(is_slow=rank == 0)
                line = board.BoardLine(self.board, rank)
                now = runtime.Runtime(link, assignment, line, self.arenas[rank])
                if self.job.get("divided"):
                    dividing.LEAST_STATE_BYTES = 0
                    now.siblings = {other: fds for other, fds in enumerate(self.arenas) if other != rank}
                    now.divides = True
                runtime.install(now)
            name = f"{'run' if with_runtime else 'plain'}-{rank}.log"
            store = self.folder / f"store-{with_runtime}-{self.generation}"
            train(self.job, rank, str(store), self.folder / name)
            code = 0
        except BaseException as error:
            print(f"rank {rank}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        finally:
            os._exit(code)

    def last_step(self) -> int:
        return max(self.cells_of(rank)[board.IntCell.LAST_STEP] for rank in range(len(self.arenas)))

    def cells_of(self, rank: int) -> memoryview:
        return memoryview(self.cells)[rank * board.LINE_BYTES :][: board.LINE_BYTES].cast("q")

    def serve(self, until) -> None:
        """Answer requests for memory until `until()` is true or all ranks have ended."""
        deadline = time.monotonic() + DEADLINE_S
        while not until() and self.pids:
            if time.monotonic() > deadline:
                self.stop()
                raise TimeoutError("ranks neither advance nor end")
            for link in select.select(list(self.links.values()), [], [], 0.001)[0]:
                rank = next(r for r, other in self.links.items() if other is link)
                try:
                    received = local.recv(link)
                except OSError:
                    received = None
                if received is None:
                    self.reap(rank)
                elif "memory" in received[0]:
                    size = received[0]["memory"]["bytes"]
                    fd = arena.create(size, rank=rank, world_size=len(self.arenas))
                    self.arenas[rank].append(fd)
                    local.send(link, {"memory": "granted", "bytes": size}, (fd,))

    def reap(self, rank: int) -> None:
        self.links.pop(rank).close()
        os.waitpid(self.pids.pop(rank), 0)

    def stop(self) -> None:
        for rank, pid in list(self.pids.items()):
            os.kill(pid, signal.SIGKILL)
            self.reap(rank)

    def common_step(self) -> int | None:
        held = [{step for fd in fds for step in arena.held_steps(fd)} for fds in self.arenas]
        common = set.intersection(*held)
        return max(common) if common else None


def newest_bytes(fd: int) -> int:
    return max(arena.inspect(fd).snapshots, key=lambda snapshot: snapshot.step).length


def main() -> None:
    job = json.loads(sys.argv[1])
    dice = random.Random(job["seed"])
    folder = Path(job["folder"])
    plain = Ranks(job)
    plain.start(None, with_runtime=False)
    plain.serve(lambda: False)

    ranks = Ranks(job)
    resumed, lost = [], []
    ranks.start(None)
    for _ in range(job["kills"]):
        done = resumed[-1] if resumed and resumed[-1] is not None else -1
        target = done + dice.randrange(max(2, 2 * job.get("reach", job["num_steps"]) // job["kills"]))
        ranks.serve(lambda target=target: ranks.last_step() >= target)
        end = time.monotonic() + dice.random() * 0.01
        ranks.serve(lambda end=end: time.monotonic() >= end)
        if not ranks.pids:
            break
        victim = dice.choice(sorted(ranks.pids))
        done = ranks.last_step()
        os.kill(ranks.pids[victim], signal.SIGKILL)
        end = time.monotonic() + dice.random() * 0.02
        ranks.serve(lambda end=end: time.monotonic() >= end)
        ranks.stop()
        step = ranks.common_step()
        resumed.append(step)
        lost.append(done - (-1 if step is None else step))
        ranks.start(step)
    ranks.serve(lambda: False)
    everyone = range(job["num_ranks"])
    print(
        json.dumps(
            {
                "resumed": resumed,
                "lost": lost,
                "plain": [(folder / f"plain-{rank}.log").read_text().splitlines() for rank in everyone],
                "run": [(folder / f"run-{rank}.log").read_text().splitlines() for rank in everyone],
                "plain_final": [(folder / f"plain-{rank}.final").read_text() for rank in everyone],
                "num_bytes": [newest_bytes(fds[-1]) for fds in ranks.arenas],
                "every": [int((folder / f"run-{rank}.every").read_text()) for rank in everyone],
                "run_final": [(folder / f"run-{rank}.final").read_text() for rank in everyone],
            }
        )
    )


if __name__ == "__main__":
    main()
