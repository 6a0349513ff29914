"""Does training notice ten open pages? One run, pages open and shut in turn, the program's own step times compared.

python bench/page_cost.py [--pairs 10] [--window 6]
"""

import argparse
import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median, quantiles

import aiohttp
import msgspec

PROGRAM = """
import sys, time
import torch, torch.distributed as dist, everstep
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(256, 256))
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
state = everstep.State(model=model, optimizer=optimizer)
with open(sys.argv[1] + str(dist.get_rank()), "a", buffering=1) as log:
    for step in state.steps(1_000_000):
        model(torch.ones(64, 256)).square().mean().backward(); optimizer.step(); optimizer.zero_grad()
        everstep.step(loss=1.0); time.sleep(0.01)
        log.write(f"{time.time()}\\n")
"""


async def read(session: aiohttp.ClientSession, address: str) -> None:
    async with session.get(address) as answer:
        async for _ in answer.content.iter_any():
            pass


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def measure(folder: Path, given: argparse.Namespace) -> None:
    while not (folder / "run/controller.json").exists() or not (folder / "log0").exists():
        await asyncio.sleep(0.2)
    place = msgspec.json.decode((folder / "run/controller.json").read_bytes())
    headers = {"Authorization": f"Bearer {(folder / 'run/token-read').read_text().strip()}"}
    windows: list[tuple[bool, float, float, float]] = []
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(headers=headers, timeout=timeout) as session:
        await asyncio.sleep(10)
        for number in range(2 * given.pairs):
            is_open = number % 2 == (number // 2) % 2  # ABBA: what drifts counts for both
            address = f"http://127.0.0.1:{place['port']}/api/events"
            readers = [asyncio.create_task(read(session, address)) for _ in range(10 if is_open else 0)]
            await asyncio.sleep(1.0)
            begun, used = asyncio.get_running_loop().time(), cpu_s(place["pid"])
            first = (folder / "log0").read_text().count("\n")
            await asyncio.sleep(given.window)
            last = (folder / "log0").read_text().count("\n")
            took = asyncio.get_running_loop().time() - begun
            windows.append((is_open, first, last, (cpu_s(place["pid"]) - used) / took))
            for reader in readers:
                reader.cancel()
    times = [float(line) for line in (folder / "log0").read_text().split()]
    steps = {is_open: [] for is_open in (False, True)}
    shares = {is_open: [] for is_open in (False, True)}
    for is_open, first, last, share in windows:
        between = [
            b - a for a, b in zip(times[int(first) : int(last)], times[int(first) + 1 : int(last)], strict=False)
        ]
        steps[is_open].append(median(between))
        shares[is_open].append(share)
    ratios = [with_pages / without - 1 for with_pages, without in zip(steps[True], steps[False], strict=True)]
    low, middle, high = quantiles(ratios, n=4)
    print(f"step time with ten pages against none: {middle:+.1%} (quarter {low:+.1%}, three quarters {high:+.1%}), "
          f"{len(ratios)} pairs of {given.window:g} s; medians {1000 * median(steps[True]):.1f} ms and "
          f"{1000 * median(steps[False]):.1f} ms")  # fmt: skip
    print(f"controller: {median(shares[True]):.2%} of a core with ten pages, {median(shares[False]):.2%} with none; "
          f"load {os.getloadavg()[0]:.0f}")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--window", type=float, default=6.0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="everstep-cost-") as name:
        folder = Path(name)
        (folder / "train.py").write_text(PROGRAM)
        command = [sys.executable, "-m", "everstep", "run", "--nproc-per-node", "2", "--run-dir", f"{name}/run"]
        with (folder / "said").open("wb") as said:
            environment = {**os.environ, "EVERSTEP_HOME": f"{name}/home"}
            process = subprocess.Popen([*command, f"{name}/train.py", f"{name}/log"], stdout=said, stderr=said,
                                       env=environment)  # fmt: skip
        try:
            asyncio.run(measure(folder, given))
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(60)


if __name__ == "__main__":
    main()
