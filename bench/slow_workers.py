"""Is a slow worker found in even and uneven pipelines? `python bench/slow_workers.py [NUM]`.

Rounds as a run measures them, of made jobs: even stages, a long last stage, sequences of uneven length; a worker that
is 1.2 to 2.0 times as slow, from the beginning or later, or none. `--trace FILE.csv` slows one worker of a table down.
"""

import argparse
import random
import sys
from collections import Counter
from pathlib import Path

from everstep.analyzer.observations.records import ParallelGroup, RankTiming
from everstep.analyzer.slowness.shares import Table, weigh
from everstep.analyzer.slowness.slow import SlowVerdict, judge
from everstep.evidence.tables import read_tables

KINDS = ("even", "long stage", "uneven sequences", "both")
FACTORS = (1.2, 1.3, 1.5, 2.0)


def make(
    draw: random.Random, kind: str, stages: int, pipelines: int
) -> tuple[list[float], tuple[ParallelGroup, ...], float]:
    """Usual seconds of each rank, the pipelines, and how much the work of a pipeline scatters from round to round."""
    base = [1.0] * stages
    if kind in ("long stage", "both"):
        base[-1] = draw.uniform(1.3, 1.8)
    groups = tuple(
        ParallelGroup(name=f"p{i}", kind="pp", complete=True, ranks=tuple(s * pipelines + i for s in range(stages)))
        for i in range(pipelines)
    )
    usual = [base[rank // pipelines] * 0.1 for rank in range(stages * pipelines)]
    return usual, groups, 0.15 if kind in ("uneven sequences", "both") else 0.0


def rounds(
    draw: random.Random, usual: list[float], groups: tuple[ParallelGroup, ...], scatter: float, slow: dict[int, float]
) -> list[list[RankTiming]]:
    """Five of them."""
    made = []
    for _ in range(5):
        of_pipeline = [draw.lognormvariate(0, scatter) for _ in groups]
        seconds = {
            rank: usual[rank] * of_pipeline[rank % len(groups)] * slow.get(rank, 1.0) * draw.gauss(1, 0.01)
            for rank in range(len(usual))
        }
        longest = max(seconds.values())
        made.append(
            [RankTiming(rank=r, compute_s=s, error_s=0.005 * s, wait_s=longest - s) for r, s in seconds.items()]
        )
    return made


def case(seed: int, kind: str, factor: float, *, is_known: bool, is_early: bool) -> tuple[SlowVerdict, set[int]]:
    """One job, judged. `is_known`: the first rounds were seen; `is_early`: it was slow in them already."""
    draw = random.Random(seed)
    stages, pipelines = draw.choice([(2, 4), (4, 2), (4, 4), (2, 8)])
    usual, groups, scatter = make(draw, kind, stages, pipelines)
    slow = {draw.randrange(len(usual)): factor} if factor > 1 else {}
    first = rounds(draw, usual, groups, scatter, slow if is_early else {})[:2] if is_known else []
    return judge(rounds(draw, usual, groups, scatter, slow), groups, first), set(slow)


def trace(path: Path, stages: int) -> None:
    """A real table, with each of some workers slowed down."""
    table = read_tables([path], stages)
    found = weigh(table)
    print("as it is:", *(f"\n  {share.code} {share.sentence}" for share in found.found))
    draw, right, innocent = random.Random(0), 0, 0
    for number in range(40):
        rank, factor = draw.choice(sorted(table.compute_s)), FACTORS[number % len(FACTORS)]
        slowed = {
            r: {s: v * factor if r == rank else v for s, v in mine.items()} for r, mine in table.compute_s.items()
        }
        workers = weigh(Table(compute_s=slowed, places=table.places)).workers
        named = set(workers.ranks) if workers is not None else set()
        right += named == {rank}
        innocent += bool(named - {rank})
    print(f"one worker 1.2 to 2.0 times as slow: {right} of 40 right, innocent named in {innocent}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("num", nargs="?", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--trace", type=Path)
    parser.add_argument("--stages", type=int, default=0)
    given = parser.parse_args()
    if given.trace is not None:
        trace(given.trace, given.stages)
        return 0
    print(f"{'pipelines':<20}{'beginning':<22}{'jobs':>6}{'right':>7}{'innocent':>10}")
    for kind in KINDS:
        for told, is_known, is_early in (("unknown", False, True), ("known, slow later", True, False),
                                         ("known, slow at once", True, True)):  # fmt: skip
            count: Counter[str] = Counter()
            for number in range(given.num):
                factor = FACTORS[number % len(FACTORS)]
                verdict, slow = case(given.seed + number, kind, factor, is_known=is_known, is_early=is_early)
                named = set(verdict.ranks) if verdict.refusal is None else set()
                count["right"] += named == slow
                count["innocent"] += bool(named - slow)
            print(f"{kind:<20}{told:<22}{given.num:>6}{count['right']:>7}{count['innocent']:>10}")
        fine = [case(given.seed + n, kind, 1.0, is_known=bool(n % 2), is_early=False)[0] for n in range(given.num)]
        accused = sum(bool(v.ranks) and v.refusal is None for v in fine)
        print(f"{kind:<20}{'no slow worker':<22}{given.num:>6}{'-':>7}{accused:>10}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
