"""What the kernel's view (eBPF) costs a job: the same ranks, observed and not observed in turn.

    sudo python bench/kernel_cost.py [--ranks 2] [--pairs 10] [--seconds 10] [--step-ms 20]

Ranks of a gloo job compute and reduce without a pause. Each pair is a window with the observer attached and one
without, in changing order; what is compared is steps per second, and the CPU time that all ranks use per step, whose
work is always the same. Beside it what the kernel itself says of the programs (kernel.bpf_stats_enabled): runs and
nanoseconds, which no noise of the machine hides, and the observer's CPU time.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RANK = """
import os, sys, time
import torch, torch.distributed as dist
rank, size, store, step_s = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], float(sys.argv[4])
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
values, count = torch.ones(65536), 0
begun = time.thread_time()
for _ in range(1_000_000):
    pass
turns = int(1_000_000 * step_s / (time.thread_time() - begun))
while True:
    for _ in range(turns):
        pass
    dist.all_reduce(values)
    values.fill_(1.0)
    count += 1
    if rank == 0:
        os.pwrite(1, count.to_bytes(8, "little"), 0)
"""
STATS = Path("/proc/sys/kernel/bpf_stats_enabled")


class Observer:
    def __init__(self, pids: list[int]) -> None:
        self._pids = pids
        self._process = subprocess.Popen(
            [sys.executable, "-m", "everstep.probes.ebpf.observer", str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.look()

    def look(self) -> float:
        """CPU seconds that it used since the look before."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"pids": self._pids}).encode() + b"\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        if "view" not in answer:
            raise SystemExit(answer.get("why_not", "no answer"))
        return float(answer["view"]["cost_s"])

    def programs(self) -> tuple[int, float]:
        """Runs and seconds of all of its programs so far."""
        texts = [each.read_text() for each in Path(f"/proc/{self._process.pid}/fdinfo").iterdir()]
        runs = sum(int(found[1]) for text in texts if (found := re.search(r"run_cnt:\s+(\d+)", text)))
        ns = sum(int(found[1]) for text in texts if (found := re.search(r"run_time_ns:\s+(\d+)", text)))
        return runs, ns / 1e9

    def rss_kib(self) -> int:
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0])

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--step-ms", type=float, default=20.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        steps = (folder / "steps").open("w+b")
        argv = [str(options.ranks), str(folder / "store"), str(options.step_ms / 1e3)]
        ranks = [
            subprocess.Popen([sys.executable, "-c", RANK, str(rank), *argv], stdout=steps)
            for rank in range(options.ranks)
        ]
        before = STATS.read_text()
        try:
            STATS.write_text("1")
            while count(steps.fileno()) < 50:
                time.sleep(0.5)
            measure(steps.fileno(), [rank.pid for rank in ranks], options.pairs, options.seconds)
        finally:
            STATS.write_text(before)
            for rank in ranks:
                rank.kill()
                rank.wait()
            steps.close()


def count(file: int) -> int:
    return int.from_bytes(os.pread(file, 8, 0), "little")


def cpu_s(pids: list[int]) -> float:
    """Of all their threads."""
    words = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
    return sum(int(each[11]) + int(each[12]) for each in words) / os.sysconf("SC_CLK_TCK")


def window(file: int, pids: list[int], seconds: float) -> tuple[float, float]:
    """Steps a second, and CPU seconds for each."""
    begun, used_s, at = count(file), cpu_s(pids), time.monotonic()
    time.sleep(seconds)
    steps = max(1, count(file) - begun)
    return steps / (time.monotonic() - at), (cpu_s(pids) - used_s) / steps


def measure(file: int, pids: list[int], pairs: int, seconds: float) -> None:
    changes, more_cpu, cost_s, runs, program_s, rss = [], [], 0.0, 0, 0.0, 0
    for pair in range(pairs):
        rates: dict[bool, float] = {}
        used_s: dict[bool, float] = {}
        for is_observed in (True, False) if pair % 2 else (False, True):
            observer = Observer(pids) if is_observed else None
            rates[is_observed], used_s[is_observed] = window(file, pids, seconds)
            if observer is not None:
                cost_s += observer.look()
                more_runs, more_s = observer.programs()
                runs, program_s, rss = runs + more_runs, program_s + more_s, max(rss, observer.rss_kib())
                observer.close()
                time.sleep(0.5)
        changes.append(rates[True] / rates[False] - 1)
        more_cpu.append(used_s[True] / used_s[False] - 1)
        print(
            f"pair {pair}: {rates[False]:.2f} steps/s, observed {rates[True]:.2f}: {changes[-1]:+.2%}; "
            f"{used_s[False] * 1e3:.1f} ms of CPU a step, observed {used_s[True] * 1e3:.1f}: {more_cpu[-1]:+.2%}",
            flush=True,
        )
    total_s = pairs * seconds
    for what, found in (("steps/s", changes), ("CPU per step", more_cpu)):
        spread = statistics.stdev(found) / len(found) ** 0.5 if len(found) > 1 else float("nan")
        middle = statistics.median(found)
        print(f"{what} observed: mean {statistics.mean(found):+.2%} ± {spread:.2%}, median {middle:+.2%}")
    print(f"load {os.getloadavg()[0]:.0f}")
    per_run = program_s / runs * 1e9 if runs else 0.0
    print(
        f"programs: {runs / total_s:.0f} runs/s, {per_run:.0f} ns each, {program_s / total_s:.3%} of a core; "
        f"observer: {cost_s / total_s:.3%} of a core (one look in {seconds:g} s), {rss / 1024:.0f} MiB"
    )


if __name__ == "__main__":
    main()
