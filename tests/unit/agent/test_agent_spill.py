"""Frames that a rank writes on a signal, into a file that goes with the rank."""

import asyncio
import contextlib
import os
import re
import signal
import socket
import subprocess
from pathlib import Path

from everstep.agent.ranks.watch_link import Spill, WatchLink
from everstep.agent.ranks.workers import Paths, Worker
from everstep.agent.watching import stacks
from everstep.probes.oom import KernelLog


def test_a_rank_that_ends_while_its_frames_are_awaited(monkeypatch):
    """Its descriptor's number is another file's by then, which must be neither cut nor read."""
    process = subprocess.Popen(["sleep", "60"])
    near, far = socket.socketpair()
    nowhere = Path("/nonexistent")
    monkeypatch.setattr(stacks, "_is_expected", lambda *_: True)

    async def story() -> tuple[list[object], str]:
        paths = Paths(stdout=nowhere, stderr=nowhere, error_file=nowhere)
        with contextlib.closing(KernelLog()) as log:
            worker = Worker(rank=0, local_rank=0, pid=process.pid, paths=paths, log=log)
            worker.watch = WatchLink(near)
            number = os.memfd_create("spill")
            worker.watch.spill = Spill(number, 0, signal.SIGURG)
            asking = asyncio.create_task(stacks._spilled(worker, worker.watch.spill, 0.0))
            await asyncio.sleep(0)
            worker.watch.close()
            made = os.memfd_create("other")
            other = os.dup2(made, number)
            os.close(made)
            os.write(other, b'Current thread 0x1 (most recent call first):\n  File "x.py", line 1 in f\n')
            try:
                return await asking
            finally:
                os.close(other)

    try:
        threads, why_not = asyncio.run(story())
        assert threads == []
        waited = re.fullmatch(r"nothing was written within (\d+\.\d) s", why_not)
        assert waited, why_not
        assert float(waited[1]) >= stacks.SPILL_S
    finally:
        process.kill()
        process.wait()
        far.close()
