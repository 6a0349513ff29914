"""Does a program that throws C++ exceptions through libtorch in every step run unchanged under all probes? And is
everything detached when the agent is killed?

    sudo python bench/kernel_exceptions.py [--steps 10000] [--ranks 2]

The same job runs twice: without any probe, and with EVERSTEP_EBPF=on and traces of rank 0 (py-spy, eBPF, collectives,
steps). Right: same last lines (a digest of the parameters, the number of exceptions), code 0, no restart. Then it runs
with the probes once more, its agent is killed, and bpftool is asked for the programs and links that it had.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from measuring.observed import attached, pid_of

EVERSTEP = [sys.executable, "-m", "everstep"]
PROGRAM = """
import hashlib, os, sys
import torch, torch.distributed as dist
torch.set_num_threads(1)
torch.manual_seed(3)
dist.init_process_group("gloo")
rank, caught = dist.get_rank(), 0
model = torch.nn.Linear(16, 16)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(int(sys.argv[1])):
    loss = model(torch.full((4, 16), 1.0 + rank)).square().mean()
    loss.backward()
    try:
        torch.empty(2).view(3)  # thrown in C++, caught in pybind
    except RuntimeError:
        caught += 1
    try:
        torch.ops.aten.mm(model.weight.detach(), torch.empty(3, 3))
    except RuntimeError:
        caught += 1
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
    optimizer.zero_grad()
    if step % 1000 == 0:
        print("step", step, flush=True)
digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()[:16]
print("end", rank, caught, digest, flush=True)
"""
OBSERVER = "everstep.probes.ebpf.observer"
AGENT = "everstep.agent"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--ranks", type=int, default=2)
    given = parser.parse_args()
    plain, _, plain_s = run(given, is_watched=False)
    watched, seen, watched_s = run(given, is_watched=True)
    print(f"plain    {plain_s:.0f} s: {'; '.join(plain)}")
    print(f"watched  {watched_s:.0f} s: {'; '.join(watched)}")
    print(f"  {seen}")
    is_same = plain == watched and len(plain) == given.ranks
    print(f"{'the same' if is_same else 'DIFFERENT'} after {given.steps:,} steps with two exceptions each in each rank")
    is_clean = killed(given)
    return 0 if is_same and is_clean else 1


class Job:
    def __init__(self, given: argparse.Namespace, folder: Path, *, is_watched: bool) -> None:
        program, config = folder / "program.py", folder / "everstep.toml"
        program.write_text(PROGRAM)
        config.write_text("[policy]\nslow_round_s = 1\n")
        self.environ = {**os.environ, "EVERSTEP_HOME": str(folder / "home"), "OMP_NUM_THREADS": "1"}
        if is_watched:
            self.environ["EVERSTEP_EBPF"] = "on"
        argv = ["run", "--nproc-per-node", str(given.ranks), "--config", str(config), str(program), str(given.steps)]
        self.out = folder / "out"
        self.process = subprocess.Popen(
            [*EVERSTEP, *argv], env=self.environ, stdout=self.out.open("wb"), stderr=(folder / "err").open("wb")
        )

    def until_observed(self) -> int:
        """The process that holds the programs."""
        end = time.monotonic() + 120
        while time.monotonic() < end and self.process.poll() is None:
            pid = pid_of(OBSERVER, self.process.pid)
            if pid is not None and attached(pid)[1]:
                return pid
            time.sleep(0.2)
        raise SystemExit("nothing was attached: `everstep check --only ebpf -v` says why")


def run(given: argparse.Namespace, *, is_watched: bool) -> tuple[list[str], str, float]:
    with tempfile.TemporaryDirectory(prefix="everstep-bench-") as name:
        job, seen, began = Job(given, Path(name), is_watched=is_watched), "", time.monotonic()
        if is_watched:
            programs, links = attached(job.until_observed())
            traces = 0
            while job.process.poll() is None and traces < 3:
                command = [*EVERSTEP, "trace", "rank", "0", "--for", "3s", "--json"]
                said = subprocess.run(command, env=job.environ, capture_output=True, check=False)
                if said.returncode == 0:
                    told = json.loads(said.stdout)["tracks"]
                    tracks = {each["track"]: each["why"] or each["is"] for each in told}
                    traces += 1
            seen = f"{len(programs)} programs and {len(links)} links attached, {traces} traces, the last one: {tracks}"
        job.process.wait()
        took_s = time.monotonic() - began
        ends = sorted(line for line in job.out.read_text().splitlines() if " end " in f" {line}")
        if job.process.returncode:
            ends.append(f"code {job.process.returncode}")
        runs = list((Path(name) / "home/runs").glob("*/logs/gen-*"))
        if len({each.name for each in runs}) != 1:
            ends.append("restarted")
        return [re.sub(r"^.*?(end \d)", r"\1", line) for line in ends], seen, took_s


def killed(given: argparse.Namespace) -> bool:
    with tempfile.TemporaryDirectory(prefix="everstep-bench-") as name:
        job = Job(argparse.Namespace(ranks=given.ranks, steps=10_000_000), Path(name), is_watched=True)
        try:
            programs, links = attached(job.until_observed())
            agent = pid_of(AGENT, job.process.pid)
            assert agent is not None
            os.kill(agent, 9)
            began = time.monotonic()
            while (left := (there("prog", programs), there("link", links))) != (set(), set()):
                if time.monotonic() > began + 10:
                    break
                time.sleep(0.05)
            took_s = time.monotonic() - began
            said = f"{len(left[0])} of {len(programs)} programs and {len(left[1])} of {len(links)} links are left"
            print(f"agent killed: {said} after {took_s:.1f} s (bpftool)")
            return left == (set(), set())
        finally:
            job.process.terminate()
            job.process.wait()


def there(kind: str, ids: set[int]) -> set[int]:
    """Of these, those that the kernel still has."""
    said = subprocess.run(["bpftool", kind, "list", "-j"], capture_output=True, check=True)
    return ids & {each["id"] for each in json.loads(said.stdout)}


if __name__ == "__main__":
    sys.exit(main())
