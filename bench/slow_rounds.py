"""What a round of the fail-slow vote costs: the rank (its interpreter lock), its agent, and the controller.

    python bench/slow_rounds.py [--entries 512 2000] [--ranks 4 256 1024] [--json]

The rank's part is the real one: torch's record of a real gloo group, made by the watch thread's own function and sent
over a socket. The controller's part reads rounds of simulated ranks, 60 steps with eight collectives each. Takes some
seconds per size; on a busy machine the least of several looks counts, and the median is shown beside it.
"""

import argparse
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from everstep.agent.watching import slow_rounds
from everstep.analyzer.slowness.arrivals import measure
from everstep.model.facts import RankRound
from everstep.wire import local
from everstep.worker.link import entered

REPEATS = 15
ROUND_S = 10.0
NUM_STEPS, PER_STEP = 60, 8


def rank_side(entries: int) -> dict[str, float]:
    """In this process, which has TORCH_FR_BUFFER_SIZE set."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    ones = torch.ones(64)
    for _ in range(entries + 10):
        dist.all_reduce(ones)
    mine, other = socket.socketpair()
    lock_s, parse_s = [], []
    for _ in range(REPEATS):
        entered.answer(mine, {"id": 1})
        received = local.recv(other)
        assert received is not None
        answer, (fd,) = received
        data = os.pread(fd, 1 << 30, 0)
        os.close(fd)
        lock_s.append(answer["took_s"])
        parse_s.append(_timed(lambda answer=answer, data=data: slow_rounds.entries_of(answer, data)))
    mine.close()
    other.close()
    dist.destroy_process_group()
    return {
        "entries": entries,
        "lock_ms": 1e3 * min(lock_s),
        "lock_median_ms": 1e3 * statistics.median(lock_s),
        "agent_ms": 1e3 * min(parse_s),
        "share": (min(lock_s) + min(parse_s)) / ROUND_S,
    }


def controller_side(num_ranks: int) -> dict[str, float]:
    rounds = simulated(num_ranks)
    took_s = [_timed(lambda: measure(rounds)) for _ in range(3)]
    assert len(measure(rounds).timings) == num_ranks
    return {"ranks": num_ranks, "controller_ms": 1e3 * min(took_s), "share": min(took_s) / ROUND_S}


def simulated(num_ranks: int) -> list[RankRound]:
    """With as many arrivals as the agents would send."""
    dice = random.Random(1)
    limit = max(slow_rounds.MIN_ARRIVALS, min(slow_rounds.MAX_ARRIVALS, slow_rounds.MAX_ARRIVALS_OF_JOB // num_ranks))
    now, arrivals = 1e9, [[] for _ in range(num_ranks)]
    for seq in range(NUM_STEPS * PER_STEP):
        came = [now + 0.0125 * dice.lognormvariate(0, 0.1) for _ in range(num_ranks)]
        for mine, at in zip(arrivals, came, strict=True):
            mine.append((seq % PER_STEP, seq, at))
        now = max(came)
    kinds = tuple(("0", f"all_reduce [{number}]") for number in range(PER_STEP))
    return [
        RankRound(
            rank=rank,
            num_steps=NUM_STEPS,
            window_s=ROUND_S,
            num_entered=NUM_STEPS * PER_STEP,
            kinds=kinds,
            arrivals=tuple(mine[-limit:]),
        )
        for rank, mine in enumerate(arrivals)
    ]


def _timed(work: Callable[[], Any]) -> float:
    begin = time.thread_time()
    work()
    return time.thread_time() - begin


def _in_process(entries: int) -> dict[str, float]:
    """torch reads the size of its ring once."""
    env = {**os.environ, "TORCH_FR_BUFFER_SIZE": str(entries)}
    command = [sys.executable, __file__, "--rank-side", str(entries)]
    answer = subprocess.run(command, env=env, capture_output=True, check=True, timeout=120)
    return dict(json.loads(answer.stdout))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entries", type=int, nargs="*", default=[128, 512, 2000])
    parser.add_argument("--ranks", type=int, nargs="*", default=[4, 256, 1024])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rank-side", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank_side:
        print(json.dumps(rank_side(options.rank_side)))
        return
    ranks = [_in_process(entries) for entries in options.entries]
    jobs = [controller_side(num_ranks) for num_ranks in options.ranks]
    if options.json:
        print(json.dumps({"round_s": ROUND_S, "rank": ranks, "controller": jobs}))
        return
    for each in ranks:
        print(
            f"{each['entries']:6.0f} entries  lock {each['lock_ms']:6.2f} ms (median {each['lock_median_ms']:.2f})  "
            f"agent {each['agent_ms']:5.2f} ms  {each['share']:.3%} of a core per rank"
        )
    for each in jobs:
        print(
            f"{each['ranks']:6.0f} ranks    controller {each['controller_ms']:8.1f} ms  {each['share']:.2%} of a core"
        )


if __name__ == "__main__":
    main()
