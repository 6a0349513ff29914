"""A job that loses a host for good and gets another: what the change of size costs, and that it changes nothing else.

    python bench/elastic.py [--hosts 4] [--kind ddp fsdp2] [--steps 20] [--wait 2]

`--nnodes N-1:N`, one launcher for each host, all on this machine's loopback. One is killed with all it has and nobody
comes, so the job goes on with N-1; then another host comes. Shown for each size: seconds from the last step before to
the first step after, the wait (`shrink_after_s`, `grow_after_s`) included, and whether

- each completed step was done once (the one in which a host is killed is begun again), and the state after the change
  is, bit for bit, the one before it,
- losses and states of the steps after it are, bit for bit, those of a run that torchrun starts at that size from there,
- each sample of the epoch was seen once.
"""

import argparse
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

PROGRAM = Path(__file__).with_name("programs") / "elastic.py"
TOKEN = "a token of this bench only"
LIMIT_S = 600.0


class Step:
    """A line of one rank."""

    def __init__(self, line: str) -> None:
        number, size, at, self.before, self.after, self.loss, seen = line.split()
        self.number, self.size, self.at = int(number), int(size), float(at)
        self.seen = [int(each) for each in seen.split(",")]


class Job:
    def __init__(self, folder: Path, kind: str, num_hosts: int, wait_s: float) -> None:
        self._folder, self._kind, self._num = folder, kind, num_hosts
        self._config = folder / "everstep.toml"
        # A starved machine must not be taken for a lost host.
        self._config.write_text(f"[policy]\ngrow_after_s = {wait_s}\nnode_silent_s = 30.0\nstart_timeout_s = 600.0\n")
        self._wait_s = wait_s
        with socket.create_server(("127.0.0.1", 0)) as found:
            self._port = found.getsockname()[1]
        self.hosts: list[subprocess.Popen[bytes]] = []

    def add(self) -> None:
        number = len(self.hosts)
        command = [sys.executable, "-m", "everstep.cli.main", "run", "--nnodes", f"{self._num - 1}:{self._num}"]
        command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{self._port}"]
        command += ["--rdzv-conf", f"last_call_timeout={self._wait_s}", "--config", str(self._config)]
        command += [
            "--run-dir",
            str(self._folder / f"run-{number}"),
            str(PROGRAM),
            str(self._folder),
            self._kind,
            "100000",
        ]
        env = {**os.environ, "EVERSTEP_JOIN_TOKEN": TOKEN, "EVERSTEP_HOME": str(self._folder / f"home-{number}")}
        out = (self._folder / f"host-{number}.log").open("wb")
        self.hosts.append(subprocess.Popen(command, env=env, stdout=out, stderr=out, start_new_session=True))
        if number == 0:
            self.until("the first host listens", lambda: b"waiting for" in (self._folder / "host-0.log").read_bytes())

    def kill(self, number: int) -> None:
        os.killpg(self.hosts[number].pid, signal.SIGKILL)

    def steps(self, rank: int = 0) -> list[Step]:
        path = self._folder / f"steps-{rank}"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        return [Step(line) for line in lines if line.endswith("\n")]

    def train(self, size: int, num_steps: int) -> None:
        def is_there() -> bool:
            steps = self.steps()
            return bool(steps) and steps[-1].size == size and sum(s.size == size for s in _last_run(steps)) >= num_steps

        self.until(f"{num_steps} steps of {size} ranks", is_there)

    def until(self, what: str, is_so: Callable[[], bool]) -> None:
        ends_at = time.monotonic() + LIMIT_S
        while not is_so():
            if time.monotonic() > ends_at:
                raise SystemExit(
                    f"not within {LIMIT_S:g} s: {what}\n{(self._folder / 'host-0.log').read_text()[-4000:]}"
                )
            if self.hosts and self.hosts[0].poll() is not None:
                raise SystemExit(f"the run ended before {what}\n{self._told()}")
            time.sleep(0.1)

    def _told(self) -> str:
        return (self._folder / "host-0.log").read_text()[-4000:]

    def end(self) -> None:
        for host in self.hosts:
            if host.poll() is None:
                os.killpg(host.pid, signal.SIGTERM)
        for host in self.hosts:
            try:
                host.wait(60)
            except subprocess.TimeoutExpired:
                os.killpg(host.pid, signal.SIGKILL)


def _last_run(steps: list[Step]) -> list[Step]:
    """Since the size changed last."""
    begin = max((i for i in range(1, len(steps)) if steps[i].size != steps[i - 1].size), default=0)
    return steps[begin:]


def compare(folder: Path, kind: str, size: int, first: int, by_rank: dict[int, list[Step]]) -> str:
    """The same steps by torchrun, started at this size from the state that they began with."""
    last = min(steps[-1].number for steps in by_rank.values())
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        str(size),
    ]
    done = subprocess.run(
        [*command, str(PROGRAM), str(folder), kind, str(last + 1), str(first)],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    if done.returncode:
        return f"torchrun failed: {done.stderr[-2000:]}"
    for rank, steps in by_rank.items():
        again = [Step(line) for line in (folder / f"again-{first}-{rank}").read_text().splitlines()]
        ours = {s.number: (s.loss, s.after, s.seen) for s in steps if s.number <= last}
        theirs = {s.number: (s.loss, s.after, s.seen) for s in again}
        different = [number for number in ours if ours[number] != theirs.get(number)]
        if different:
            return f"rank {rank} differs from torchrun at step {different[0]}"
    return f"{last + 1 - first} steps equal torchrun's, bit for bit"


def report(folder: Path, kind: str, job: Job, num_hosts: int) -> bool:
    zero = job.steps()
    size_of = {step.number: step.size for step in zero}
    # Not what a killed rank alone had done of a step: all ranks have done that again.
    by_rank = {r: [s for s in job.steps(r) if size_of.get(s.number) == s.size] for r in range(num_hosts)}
    # What a host had done of a step when it was killed does not count: the others had not done it.
    done = {step.number: step for step in zero}
    begins = [0, *(i for i in range(1, len(zero)) if zero[i].size != zero[i - 1].size)]
    again = [a.number for a, b in pairwise(zero) if b.number <= a.number]
    is_good = list(done) == list(range(zero[-1].number + 1)) and len(again) <= 1
    is_good = is_good and all(zero[at].size < zero[at - 1].size for at in begins[1:] if zero[at].number in again)
    print(f"{kind}: steps 0-{zero[-1].number} of rank 0; begun again: {again or 'none'}")
    for at, end in zip(begins, [*begins[1:], len(zero)], strict=True):
        first, size = zero[at].number, zero[at].size
        mine = {r: [s for s in by_rank[r] if first <= s.number <= zero[end - 1].number] for r in range(size)}
        said = compare(folder, kind, size, first, mine)
        line = f"  {size} ranks from step {first}: {said}"
        is_good = is_good and "equal" in said
        if at:
            before = next(step for step in reversed(zero[:at]) if step.number == first - 1)
            kept = zero[at].before == before.after
            is_good = is_good and kept
            line += (
                f"; {zero[at].at - zero[at - 1].at:.2f} s between the steps; state {'the same' if kept else 'CHANGED'}"
            )
        print(line, flush=True)
    last = min(steps[-1].number for steps in by_rank.values())  # a killed rank may have begun one more
    seen = Counter(each for steps in by_rank.values() for s in steps if s.number <= last for each in s.seen)
    order = sorted(seen.values())
    is_once = order[-1] == 1
    print(f"  {len(seen)} samples seen, {'each once' if is_once else f'some {order[-1]} times'}")
    expected = sum(s.size * len(s.seen) for s in done.values() if s.number <= last)
    print(f"  {expected} were to be seen: {'none missed' if expected == len(seen) else 'SOME MISSED'}")
    return is_good and is_once and expected == len(seen)


def run(kind: str, num_hosts: int, num_steps: int, wait_s: float) -> bool:
    folder = Path(tempfile.mkdtemp(prefix="elastic-"))
    job = Job(folder, kind, num_hosts, wait_s)
    try:
        for _ in range(num_hosts):
            job.add()
        job.train(num_hosts, num_steps)
        job.kill(1)
        job.train(num_hosts - 1, num_steps)
        job.add()
        job.train(num_hosts, num_steps)
        job.end()
        return report(folder, kind, job, num_hosts)
    finally:
        job.end()
        shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--kind", nargs="+", default=["ddp", "fsdp2"], choices=["ddp", "fsdp2"])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--wait", type=float, default=2.0)
    given = parser.parse_args()
    results = [run(kind, given.hosts, given.steps, given.wait) for kind in given.kind]
    raise SystemExit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
