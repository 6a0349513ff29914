"""Does eBPF say anything of a healthy, irregular job, and does its memory stay? A real run, as long as asked.

    sudo python bench/kernel_quiet.py [--minutes 30] [--ranks 2] [--pause-ms 33]

Steps of random length, evaluations, saves with fsync, collections of garbage: no rank is slow for long.
Every verdict on slow ranks is printed; one whose evidence comes from the kernel names what took the CPU, which on a
machine that others use may be true.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from measuring.observed import attached, map_entries, map_kib, pid_of, rss_kib

PROGRAM = """
import gc, os, random, sys, time
import torch, torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, end, folder, pause_s = dist.get_rank(), time.time() + float(sys.argv[1]), sys.argv[2], float(sys.argv[3])
draw, step = random.Random(rank), 0
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
while True:
    model(torch.ones(8, 64)).square().mean().backward()
    time.sleep(min(10 * pause_s, draw.expovariate(1 / pause_s)))
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
    optimizer.zero_grad()
    step += 1
    if step % 60 == 0:
        time.sleep(0.2)  # an evaluation
    if step % 200 == 0:
        with open(f"{folder}/save-{rank}", "wb") as file:
            file.write(os.urandom(1 << 20))
            file.flush()
            os.fsync(file.fileno())
        gc.collect()
    done = torch.tensor([float(time.time() > end)])
    dist.all_reduce(done)
    if done.item():
        break
print("steps", step, flush=True)
"""
OBSERVER, AGENT = "everstep.probes.ebpf.observer", "everstep.agent"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--pause-ms", type=float, default=33.0, help="of each step, on average")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="everstep-bench-") as name:
        folder = Path(name)
        (folder / "program.py").write_text(PROGRAM)
        (folder / "everstep.toml").write_text("[policy]\nslow_round_s = 2\n")
        environ = {**os.environ, "EVERSTEP_HOME": str(folder / "home"), "EVERSTEP_EBPF": "on", "OMP_NUM_THREADS": "1"}
        argv = ["run", "--nproc-per-node", str(given.ranks), "--config", str(folder / "everstep.toml")]
        argv += [str(folder / "program.py"), str(60 * given.minutes), str(folder), str(given.pause_ms / 1e3)]
        with (folder / "out").open("wb") as out:
            process = subprocess.Popen([sys.executable, "-m", "everstep", *argv], env=environ, stdout=out, stderr=out)
            samples = watch(process)
        told(folder, process.returncode, samples)


Sample = dict[str, float]


def watch(process: subprocess.Popen[bytes]) -> list[Sample]:
    """Memory of observer and agent in MiB, that of the maps, and their entries, each minute, until the job ends."""
    samples: list[Sample] = []
    begun = time.monotonic()
    while process.poll() is None:
        time.sleep(60 if samples else 30)
        observer, agent = pid_of(OBSERVER, process.pid), pid_of(AGENT, process.pid)
        if observer is None or agent is None or not attached(observer)[1]:
            continue
        sample = {"minute": (time.monotonic() - begun) / 60, "maps": map_kib(observer) / 1024}
        sample |= {"observer": rss_kib(observer) / 1024, "agent": rss_kib(agent) / 1024}
        sample["entries"] = map_entries(observer)
        samples.append(sample)
        print("  ".join(f"{name} {value:.1f}" for name, value in sample.items()), flush=True)
    return samples


def told(folder: Path, code: int, samples: list[Sample]) -> None:
    (journal,) = folder.glob("home/runs/r*/journal.jsonl")
    records = [json.loads(line) for line in journal.read_text().splitlines()[1:]]
    verdicts = [
        action["verdict"]
        for record in records
        for action in record.get("actions", ())
        if action["type"] == "Concluded" and action.get("verdict")
    ]
    for verdict in verdicts:
        print(f"  {verdict['code']} {verdict['sentence']}")
    starts = len(list(folder.glob("home/runs/r*/logs/gen-*")))
    print(f"code {code}, {starts} generations, {len(verdicts)} verdicts; observed at {len(samples)} looks")
    for name in ("observer", "agent", "maps", "entries"):
        values = [sample[name] for sample in samples]
        if len(values) > 2:
            hour = slope([sample["minute"] / 60 for sample in samples], values)
            said = f"{values[0]:.1f} at first, {values[-1]:.1f} at the end, {max(values):.1f} at most"
            print(f"  {name}: {said}, {hour:+.2f} an hour in the second half")


def slope(at: list[float], values: list[float]) -> float:
    """Per unit of `at`, by least squares, of the second half: the first one fills what is bounded."""
    half = len(at) // 2
    return statistics.linear_regression(at[half:], values[half:]).slope


if __name__ == "__main__":
    main()
