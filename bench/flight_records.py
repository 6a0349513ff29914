"""Who is named from made flight records of NCCL: `python bench/flight_records.py [NUM]`.

Half of the jobs have one broken rank, half are healthy with full queues; each guilty one is judged with all files,
with one innocent rank's file left out, and with its own left out. With `--dir FOLDER --guilty 9,14` a folder of real
dumps is judged the same way. `--seed` makes other jobs.

`--many 1000` times `everstep analyze` on the records of so many ranks, 2,000 operations each, and torch's own analyzer
on the same folder (`--folder` keeps it for the next time).
"""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec

from everstep.analyzer.hangs.combine import diagnose
from everstep.analyzer.observations.records import Case, RankEvidence
from everstep.analyzer.reading.flight import normalise
from everstep.evidence.decode import decode
from everstep.evidence.sniff import Kind
from everstep.model.verdict import Verdict
from matrix import large_folder as large
from matrix.flights import FAULTS, Made, make_guilty, make_healthy

HEADER = f"{'case':<22}{'jobs':>6}{'named':>7}{'wrong':>7}"


def judge(made: Made, without: int | None = None) -> Verdict:
    """As `everstep analyze` would."""
    ranks = [
        RankEvidence(
            rank=rank,
            flight=msgspec.structs.replace(normalise(raw, rank), taken_at=made.taken_at),
        )
        for rank, raw in made.records.items()
        if rank != without
    ]
    return diagnose(Case(at=made.taken_at, ranks=tuple(ranks), world=made.world)).verdict


def cases(num: int, seed: int = 0) -> Iterator[tuple[str, Made, int | None]]:
    """What is judged: name, records, whose file is left out."""
    first = seed
    for seed in range(first, first + num):
        made = make_guilty(seed)
        innocent = sorted(set(made.world) - made.guilty)
        yield made.fault, made, None
        yield f"{made.fault} -1", made, innocent[seed % len(innocent)]
        yield "own file missing", made, min(made.guilty)
    for seed in range(first, first + num):
        made = make_healthy(seed)
        yield "healthy", made, None
        yield "healthy -1", made, seed % len(made.world)


def measure(num: int, seed: int = 0) -> tuple[Counter[str], Counter[str], Counter[str]]:
    """Jobs, jobs of which exactly the guilty are named, jobs of which an innocent rank is."""
    jobs: Counter[str] = Counter()
    right: Counter[str] = Counter()
    wrong: Counter[str] = Counter()
    for name, made, without in cases(num, seed):
        ranks = set(judge(made, without).ranks)
        jobs[name] += 1
        right[name] += made.guilty <= ranks
        wrong[name] += bool(ranks - made.guilty)
    return jobs, right, wrong


def real(folder: Path, guilty: set[int]) -> None:
    """A folder of dumps `..._N`, whole and with each file left out in turn."""
    files = {int(path.name.rpartition("_")[2]): path for path in folder.glob("*_*") if path.suffix == ""}
    records = {rank: decode(path.read_bytes(), Kind.PICKLE)[0].raw_record for rank, path in files.items()}
    made = Made(records, frozenset(guilty), "real", time.time(), tuple(sorted(records)))  # type: ignore[arg-type]
    for without in (None, *made.world):
        verdict = judge(made, without)
        told = f"without {without}" if without is not None else "whole"
        print(f"{told:<12}{verdict.code}  named {list(verdict.ranks)}  wrong {sorted(set(verdict.ranks) - guilty)}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("num", nargs="?", type=int, default=120)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dir", type=Path)
    parser.add_argument("--guilty", default="")
    parser.add_argument("--many", type=int)
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args()
    if given.dir is not None:
        real(given.dir, {int(rank) for rank in given.guilty.split(",") if rank})
        return 0
    if given.many is not None:
        large.measure(given.many, given.seed, given.folder)
        return 0
    begun = time.monotonic()
    jobs, right, wrong = measure(given.num, given.seed)
    print(HEADER)
    for name in sorted(jobs, key=lambda n: (n.endswith("-1"), n)):
        named = "-" if name.startswith("healthy") else right[name]
        print(f"{name:<22}{jobs[name]:>6}{named:>7}{wrong[name]:>7}")
    whole = [name for name in jobs if name in FAULTS]
    total = sum(jobs[name] for name in whole)
    print(f"named {sum(right[name] for name in whole)} of {total}; {time.monotonic() - begun:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
