"""What it costs an agent to read the counters of its ports every two seconds: two processes at the same time, one that
reads them and one that only wakes up as often."""

import argparse
import statistics
import subprocess
import sys
from pathlib import Path

WAKING = """
import asyncio, sys, time
from everstep.agent.senses.links import PER_PEER_S
from everstep.agent.senses.ports import ROUND_S, Ports
async def main(seconds, reads):
    ports, ends_at, read_at = Ports(), time.monotonic() + seconds, 0.0
    began = time.process_time()
    while time.monotonic() < ends_at:
        await asyncio.sleep(PER_PEER_S)
        if time.monotonic() - read_at >= ROUND_S:
            read_at = time.monotonic()
            if reads:
                ports.look()
    print(time.process_time() - began)
asyncio.run(main(float(sys.argv[1]), sys.argv[2] == "reads"))
"""


def ports(given: argparse.Namespace) -> None:
    shares = []
    for seed in range(given.seeds):
        kinds = ("reads", "wakes") if seed % 2 else ("wakes", "reads")
        used = {kind: subprocess.Popen([sys.executable, "-c", WAKING, str(given.seconds), kind], stdout=subprocess.PIPE)
                for kind in kinds}  # fmt: skip
        cpu_s = {kind: float(process.communicate()[0]) for kind, process in used.items()}
        shares.append((cpu_s["reads"] - cpu_s["wakes"]) / given.seconds)
        print(*(f"{kind} {each / given.seconds:.3%}" for kind, each in sorted(cpu_s.items())), "of a core", flush=True)
    num = len(list(Path("/sys/class/net").iterdir()))
    print(f"reading {num} ports: {statistics.median(shares):.3%} of a core, {min(shares):.3%} to {max(shares):.3%}")
