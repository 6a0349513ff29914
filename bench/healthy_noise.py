"""How often `everstep analyze` finds a cause in a healthy log that is full of frightening noise.

    python bench/healthy_noise.py [--logs 300] [--kept] [--show 10]

Each log is a training in one of seven styles with four to ten blocks of tests/golden/knowledge/noise.txt in it: most
before its first step, some between steps and some after the last but one. One in ten has no steps. Two of three say at
their end that it is over. Nothing fails in any of them: every verdict with a cause is false. `--kept`: the blocks of
noise_kept.txt, which was written after noise.txt had been used.
"""

import argparse
import random
import sys
from pathlib import Path

from excerpts import NOTHING_FOUND, verdict_on
from healthy_logs import step_line

NOISE = Path(__file__).parents[1] / "tests" / "golden" / "knowledge" / "noise.txt"
KEPT = NOISE.with_name("noise_kept.txt")
CAUGHT = "!"
NUM_STEPS = 24
STEPS_BEHIND = 4
"""So many follow an exception that was caught: fewer do not show that it was."""
SEED = 3400


def blocks(path: Path = NOISE) -> list[str]:
    text = path.read_text(encoding="utf-8")
    return [block.strip("\n") for block in text.split("\n\n")[1:] if block.strip()]


def healthy(number: int, noise: list[str]) -> str:
    rng = random.Random(SEED + number)
    style, has_steps = rng.randrange(7), rng.random() >= 0.1
    begin = rng.randrange(3) * 1000
    lines = [f"+ torchrun --nproc-per-node 8 train.py --config run{number}.yaml"]
    steps = [step_line(style, rng, begin + step) for step in range(NUM_STEPS)]
    if not has_steps:
        steps = [f"wrote shard {number}-{step:05d}.bin (0 errors)" for step in range(NUM_STEPS)]
    places: list[list[str]] = [[] for _ in range(NUM_STEPS)]
    for block in rng.sample(noise, rng.randrange(4, 11)):
        is_caught = block.startswith(CAUGHT)
        if is_caught and not has_steps:
            continue
        last = NUM_STEPS - 1 - (STEPS_BEHIND if is_caught else 0)
        place = rng.choice((0, 0, 0, rng.randrange(last + 1), last))
        places[place].append(block.removeprefix(CAUGHT))
    for before, step in zip(places, steps, strict=True):
        lines += [*before, step]
    if rng.random() < 2 / 3:
        lines.append("training complete, exit code 0" if has_steps else "all shards written")
    return "\n".join(lines) + "\n"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--logs", type=int, default=300)
    parser.add_argument("--kept", action="store_true", help="the blocks of noise_kept.txt")
    parser.add_argument("--show", type=int, default=0, metavar="N", help="print the first N false causes")
    args = parser.parse_args(argv)
    noise, causes = blocks(KEPT if args.kept else NOISE), 0
    for number in range(args.logs):
        verdict = verdict_on(healthy(number, noise)).verdict
        if verdict.code not in NOTHING_FOUND:
            causes += 1
            if causes <= args.show:
                print(f"log {number}: {verdict.code} {verdict.blame} {verdict.confidence}: {verdict.sentence[:200]}")
    print(f"{args.logs} healthy logs of {len(noise)} kinds of noise: {causes} with a cause")
    return 1 if causes else 0


if __name__ == "__main__":
    sys.exit(main())
