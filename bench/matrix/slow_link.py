"""Two hosts of one rank each, in network namespaces, for bench/slow_ranks.py: the link out of one becomes slow."""

import contextlib
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from everstep.testing.hosts import Bed, Host

SCRIPT = Path(__file__).parents[1] / "jobs" / "slow_script.py"
PORT = 29400
WIDTH = 256
"""Gradients of 256 KiB: a step sends as much to the other host."""

LOST_PERCENT = (8, 16)
"""Of packets of up to 64 KiB, five in a step of 75 ms: 3 % cost it 1 %, 6 % cost it 20 %, 15 % as much again."""

BYTES_PER_S = (2_000_000, 6_000_000)


class Running(Protocol):
    """What is used of a run here; `measuring.launched.Launched` is one."""

    def last_output(self, num_bytes: int) -> str: ...

    def exit_code(self) -> int | None: ...


class Hosts:
    def __init__(self, processes: list["subprocess.Popen[bytes]"], folder: Path) -> None:
        self._processes, self._folder = processes, folder

    def last_output(self, num_bytes: int) -> str:
        said = "".join(path.read_text(errors="replace") for path in sorted(self._folder.glob("host-*")))
        return said[-num_bytes:]

    def exit_code(self) -> int | None:
        return next((code for each in self._processes if (code := each.poll()) is not None), None)


class Victim(Protocol):
    rank: int
    folder: Path
    words: tuple[str, ...]


@contextmanager
def two_hosts(bed: Bed, folder: Path, env: Mapping[str, str], mode: str) -> Iterator[Hosts]:
    hosts = [bed.add(f"h{number}") for number in range(2)]
    common = {**env, "EVERSTEP_JOIN_TOKEN": "the token of this benchmark"}
    common.pop("EVERSTEP_HOME")  # each host has its own
    processes = []
    for number, host in enumerate(hosts):
        command = [sys.executable, "-m", "everstep", "run", "--nnodes", "2", "--node-rank", str(number)]
        command += ["--rdzv-endpoint", f"{hosts[0].address}:{PORT}", "--config", str(folder / "everstep.toml")]
        with (folder / f"host-{number}").open("wb") as out:
            processes.append(host.start([*command, str(SCRIPT), mode, str(WIDTH)], env=common, out=out, err=out))
    (folder / "run").symlink_to(hosts[0].folder / "home" / "runs" / "latest")
    try:
        yield Hosts(processes, folder)
    finally:
        for name in ("controller.log", "journal.jsonl"):
            with contextlib.suppress(OSError):  # what is kept of a run that never began
                shutil.copy(folder / "run" / name, folder / name)
        for process in processes:
            process.terminate()
        for process in processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


@contextmanager
def slow_link(bed: Bed, hurt: Victim, rng: random.Random) -> Iterator[None]:
    """What the rank sends goes out slowly. Its host is the one in whose process namespace its pid is."""
    host = _host_of(bed, hurt.rank)
    other = next(each for each in bed.hosts if each is not host)
    hurt.words = (f"to {other.address}",)
    host.throttle(rng.randrange(*BYTES_PER_S))
    try:
        yield
    finally:
        host.heal()


@contextmanager
def lossy_link(bed: Bed, hurt: Victim, rng: random.Random) -> Iterator[None]:
    """Some percent of what the rank sends is lost on its way to the other host."""
    host = _host_of(bed, hurt.rank)
    other = next(each for each in bed.hosts if each is not host)
    hurt.words = ("segments sent again",)
    host.lose(rng.randrange(*LOST_PERCENT), other)
    try:
        yield
    finally:
        other.heal()


def _host_of(bed: Bed, rank: int) -> Host:
    for host in bed.hosts:
        for pid in host.pids():
            try:
                words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if f"RANK={rank}".encode() in words and os.fsencode(SCRIPT) in Path(f"/proc/{pid}/cmdline").read_bytes():
                return host
    raise RuntimeError(f"rank {rank} runs on no host")
