"""Healthy programs whose loop, beginning or end is unusual. Imported by healthy_script.py.

Each function is a program (see healthy_job.py). `prepare` and `load` are what lies before the loop.
"""

import atexit
import os
import random
import time
import urllib.request
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from jobs.healthy_job import EVERY, WIDTH, Job, Notes, Wish, shape


class Samples(IterableDataset[torch.Tensor]):  # type: ignore[misc, unused-ignore]
    """Now and then a batch has to be fetched from far away: by waiting, or by decoding."""

    def __init__(self, seconds: float, first: bool = False, works: bool = False) -> None:
        self.seconds, self.first, self.works = seconds, first, works

    def __iter__(self) -> Iterator[torch.Tensor]:
        number = 0
        while True:
            if number % EVERY == (0 if self.first else EVERY - 1) and (number == 0 or not self.first):
                end = time.monotonic() + self.seconds
                while self.works and time.monotonic() < end:
                    sum(range(9999))
                time.sleep(max(0.0, end - time.monotonic()))
            number += 1
            yield torch.randn(16, WIDTH)


def _loaded(job: Job, data: Samples, **options: Any) -> None:  # noqa: ANN401
    batches = iter(DataLoader(data, batch_size=None, num_workers=1, prefetch_factor=2, **options))
    for step in job.steps():
        if step % EVERY == EVERY - 1 and job.concerned:
            with job.irregular():
                batch = next(batches)
        else:
            batch = next(batches)
        job.train(batch)


@shape
def loader_waits(job: Job) -> None:
    _loaded(job, Samples(job.wish.seconds if job.concerned else 0.0))


@shape
def loader_decodes(job: Job) -> None:
    _loaded(job, Samples(job.wish.seconds if job.concerned else 0.0, works=True))


@shape
def loader_pinned(job: Job) -> None:
    """A thread hands batches on from the workers."""
    _loaded(job, Samples(job.wish.seconds if job.concerned else 0.0), pin_memory=True)


@shape
def cold_cache(job: Job) -> None:
    """Every epoch begins with new workers whose first batch takes long."""
    batches: Iterator[torch.Tensor] = iter(())
    for step in job.steps():
        if step % EVERY == 0:
            del batches
            data = Samples(job.wish.seconds if job.concerned and step else 0.0, first=True)
            batches = iter(DataLoader(data, batch_size=None, num_workers=1))
            if step and job.concerned:
                with job.irregular():
                    batch = next(batches)
            else:
                batch = next(batches)
        else:
            batch = next(batches)
        job.train(batch)


@shape
def several_groups(job: Job) -> None:
    """Each rank is in a group of its own besides, and takes its time in it."""
    groups = [dist.new_group([rank]) for rank in range(job.size)]
    for step in job.steps():
        dist.all_reduce(torch.ones(4), group=groups[job.rank])
        if job.is_due(step):
            with job.irregular() as seconds:
                end = time.monotonic() + seconds
                while time.monotonic() < end:
                    dist.all_reduce(torch.ones(4), group=groups[job.rank])
                    time.sleep(0.3)
        job.train()


@shape
def new_groups(job: Job) -> None:
    """Groups come and go; the first thing that a new one does is to wait."""
    for step in job.steps():
        job.train()
        if step % EVERY == EVERY - 1:
            group = dist.new_group(list(range(job.size)))
            if job.concerned:
                with job.irregular() as seconds:
                    time.sleep(seconds)
            dist.barrier(group=group)
            dist.destroy_process_group(group)


@shape
def pipeline(job: Job) -> None:
    """Stages send to each other; the others wait in recv while one takes long."""
    piece = torch.zeros(8)
    for step in job.steps():
        if job.rank > 0:
            dist.recv(piece, job.rank - 1)
        if job.is_due(step):
            with job.irregular() as seconds:
                time.sleep(seconds)
        if job.rank < job.size - 1:
            dist.send(piece, job.rank + 1)
        job.train()


@shape
def accumulation(job: Job) -> None:
    """Many small steps without a collective (no_sync) before the one that has some."""
    for step in job.steps():
        if job.is_due(step):
            with job.irregular() as seconds, job.ddp.no_sync():
                end = time.monotonic() + seconds
                while time.monotonic() < end:
                    job.ddp(torch.randn(16, WIDTH)).square().mean().backward()
                    time.sleep(0.05)
        job.train()


@shape
def uneven_inputs(job: Job) -> None:
    """DDP's own join: one rank has more batches than the others."""
    for step in job.steps():
        job.train()
        if step % EVERY == EVERY - 1:
            with job.ddp.join():
                if job.concerned:
                    with job.irregular() as seconds:
                        end = time.monotonic() + seconds
                        while time.monotonic() < end:
                            job.ddp(torch.randn(16, WIDTH)).square().mean().backward()
                            time.sleep(0.2)


@shape
def between_collectives(job: Job) -> None:
    """One collective is under way, another one comes late, all in the same order."""
    for step in job.steps():
        job.train()
        if step % EVERY == EVERY - 1:
            data = torch.ones(1000)
            first = dist.all_reduce(data, async_op=True)
            if job.concerned:
                with job.irregular() as seconds:
                    time.sleep(seconds)
            if first is not None:
                first.wait()
            dist.all_gather([torch.zeros(1000) for _ in range(job.size)], data)


@shape
def monitored(job: Job) -> None:
    """gloo's own barrier that waits for every rank by name."""
    for step in job.steps():
        job.train()
        if step % EVERY == EVERY - 1:
            if job.concerned:
                with job.irregular() as seconds:
                    time.sleep(seconds)
            dist.monitored_barrier(timeout=timedelta(minutes=10))


@shape
def object_gather(job: Job) -> None:
    """Metrics as Python objects: rank 0 makes a table of them while the others wait to hear of it."""
    for step in job.steps():
        job.train()
        if step % EVERY == EVERY - 1:
            rows: list[Any] = [None] * job.size
            dist.all_gather_object(rows, {"rank": job.rank, "rows": list(range(2000))})
            if job.concerned:
                with job.irregular() as seconds:
                    time.sleep(seconds)
            answer = [rows]
            dist.broadcast_object_list(answer, 0)


@shape
def store_barrier(job: Job) -> None:
    """The others wait for a key in the store that one rank sets late."""
    store = dist.distributed_c10d._get_default_store()
    store.set_timeout(timedelta(minutes=10))
    for step in job.steps():
        job.train()
        if step % EVERY == EVERY - 1:
            key = f"{os.environ.get('TORCHELASTIC_RESTART_COUNT')}-{step}"
            if job.concerned:
                with job.irregular() as seconds:
                    time.sleep(seconds)
                store.set(f"{key}-{job.rank}", "1")
            for rank in range(job.size):
                if job.wish.concerns(rank, job.size):
                    store.wait([f"{key}-{rank}"])


@shape
def file_barrier(job: Job) -> None:
    """The others look for a file that one rank writes late."""
    for step in job.steps():
        job.train()
        if step % EVERY == EVERY - 1:
            paths = [
                job.folder / f"ready-{os.environ.get('TORCHELASTIC_RESTART_COUNT')}-{step}-{rank}"
                for rank in range(job.size)
                if job.wish.concerns(rank, job.size)
            ]
            if job.concerned:
                with job.irregular() as seconds:
                    time.sleep(seconds)
                paths[0 if job.wish.who != "all" else job.rank].touch()
            while not all(path.exists() for path in paths):
                time.sleep(0.2)


@shape
def lengths(job: Job) -> None:
    """Sequences of another length in every step and on every rank; some are very long."""
    dice = random.Random(job.rank)
    for step in job.steps():
        if job.is_due(step):
            with job.irregular() as seconds:
                job.train(sleep_s=seconds)
        else:
            job.train(sleep_s=dice.uniform(0.01, 0.12))


@shape
def computing(job: Job) -> None:
    """No waiting at all: every step is arithmetic, now and then a very long one."""
    layer = nn.Linear(WIDTH, WIDTH)
    for step in job.steps():
        if job.is_due(step):
            with job.irregular() as seconds:
                end = time.monotonic() + seconds
                while time.monotonic() < end:
                    layer(torch.randn(64, WIDTH))
        job.train(sleep_s=0.0)


def _quiet(job: Job) -> None:
    for _ in job.steps():
        job.train()


@shape
def before_init(job: Job) -> None:
    """Data is prepared before there is a process group."""
    _quiet(job)


@shape
def late_rank(job: Job) -> None:
    """A node's storage is slow: its ranks come to init_process_group long after the others."""
    _quiet(job)


@shape
def after_init(job: Job) -> None:
    """The model is loaded between init_process_group and the first step."""
    _quiet(job)


@shape
def last_barrier(job: Job) -> None:
    """After the loop one rank uploads, and the others wait for it before they end."""
    _quiet(job)
    if job.concerned:
        with job.irregular() as seconds:
            _upload(job, seconds)
    dist.barrier()


@shape
def at_exit(job: Job) -> None:
    """A library uploads what it has when the process ends."""
    _quiet(job)
    if job.concerned:
        atexit.register(_at_exit, job)


def _at_exit(job: Job) -> None:
    with job.irregular() as seconds:
        _upload(job, seconds)


def _upload(job: Job, seconds: float) -> None:
    urllib.request.urlopen(f"{job.server}/late?seconds={seconds}", data=b"x").read()


def prepare(wish: Wish, notes: Notes) -> None:
    """Before there is a process group."""
    if wish.kind in ("before-init", "late-rank") and wish.concerns(notes.rank, notes.size):
        _take_time(wish, notes)


def load(wish: Wish, notes: Notes) -> None:
    """Between the process group and the first step."""
    if wish.kind == "after-init" and wish.concerns(notes.rank, notes.size):
        _take_time(wish, notes)


def _take_time(wish: Wish, notes: Notes) -> None:
    notes.write("begin")
    end = time.monotonic() + wish.seconds
    while time.monotonic() < end:
        if wish.kind == "before-init":
            sorted(str(i) for i in range(2000))
        else:
            time.sleep(0.5)
    notes.write("end")
