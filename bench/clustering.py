"""How long it takes to group the stacks of very many ranks by what they do, on one core.

    python bench/clustering.py [--ranks 16384 100000] [--json]

Stacks are those of a job with pipeline stages: most ranks wait in one of eight places, with the scatter that real
sweeps show (lines, inner frames of the standard library, recursion), five ranks stand elsewhere. Every stack is its own
object, as when it came from its own file, so that nothing is gained by identity. The five must be found.
"""

import argparse
import gc
import json
import random
import time
from collections.abc import Iterator

from everstep.analyzer.observations.clusters import cluster
from everstep.analyzer.observations.records import Frame, Thread

_TORCH = "torch/nn/modules/module.py"
_OUTLIERS = 5


def stack(source: random.Random, stage: int, depth: int = 30) -> tuple[Frame, ...]:
    """Innermost first; the place is decided by `stage`, everything else is noise."""
    noise = [Frame("Condition.wait", "threading.py", source.randrange(300, 360), False)] * source.randrange(3)
    wait = Frame("all_reduce", "torch/distributed/distributed_c10d.py", source.randrange(3240, 3260), False)
    calls = [
        Frame(f"_call_impl_{level % 7}", _TORCH, source.randrange(1500, 1800), False) for level in range(depth - 6)
    ]
    user = [Frame("step", "train.py", 200 + stage, True), Frame("main", "train.py", 90, True)]
    return (*noise, wait, *calls, *user, Frame("<module>", "train.py", 400, True))


def outlier(source: random.Random, number: int) -> tuple[Frame, ...]:
    return (Frame("read", "data.py", source.randrange(10, 99), True), Frame("load", "data.py", 7 + number, True))


def make(num_ranks: int, seed: int = 0) -> tuple[dict[int, Thread], set[int]]:
    source = random.Random(seed)
    odd = set(source.sample(range(num_ranks), _OUTLIERS))
    threads = {
        rank: Thread(
            name="MainThread",
            frames=outlier(source, rank % 2) if rank in odd else stack(source, rank * 8 // num_ranks),
            active=source.random() < 0.01,
        )
        for rank in range(num_ranks)
    }
    return threads, odd


def measure(sizes: list[int], num_rounds: int = 3) -> Iterator[dict[str, object]]:
    for num_ranks in sizes:
        threads, odd = make(num_ranks)
        took = []
        for _ in range(num_rounds):
            gc.collect()
            begun = time.process_time()
            found = cluster(threads)
            took.append(time.process_time() - begun)
        yield {
            "ranks": num_ranks,
            "best_s": round(min(took), 3),
            "worst_s": round(max(took), 3),
            "clusters": len(found.healthy) + len(found.outliers),
            "outliers_right": set(found.outlier_ranks) == odd,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[16_384, 100_000])
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    rows = list(measure(given.ranks))
    if given.json:
        print(json.dumps(rows))
        return
    print(f"{'ranks':>8}  {'best':>8}  {'worst':>8}  clusters  outliers found")
    for row in rows:
        times = f"{row['best_s']:>7} s  {row['worst_s']:>7} s"
        print(f"{row['ranks']:>8}  {times}  {row['clusters']:>8}  {row['outliers_right']}")


if __name__ == "__main__":
    main()
