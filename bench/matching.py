"""How fast logs are read with the full base loaded, and what the worst inputs cost.

    python bench/matching.py [--mb 64] [--json]
    python bench/matching.py --analyze DIR...       folders of logs of your own, as `everstep analyze` reads them

Ordinary text is what jobs print while nothing is wrong: torchtitan, Megatron and Hugging Face progress lines, NCCL
INFO, warnings. One process, one thread, chunks of 1 MiB unless stated, seconds of CPU time: the first reading by an
engine that has read nothing, and the best of three more, for other processes on the machine only ever slow it down.
Worst cases are there to show that nothing is worse than linear.
"""

import argparse
import json
import random
import resource
import time
from collections.abc import Callable
from pathlib import Path

from everstep.evidence.folder import read_folder
from everstep.evidence.logs import WHOLE_BYTES
from everstep.knowledge.engine import Engine
from everstep.knowledge.loading import Base, load_base
from everstep.knowledge.matcher import Matcher

CHUNK_BYTES = 1 << 20
NOW = 1_795_000_000.0
ROUNDS = 3


def ordinary_line(rng: random.Random, number: int, *, colours: bool) -> str:
    rank, kind = number % 8, rng.random()
    stamp = f"2026-11-21 03:{number // 60 % 60:02d}:{number % 60:02d}"
    if kind < 0.55:
        parts = ("\x1b[31m", "\x1b[32m", "\x1b[33m", "\x1b[39m") if colours else ("", "", "", "")
        return (
            f"[rank{rank}]:[titan] {stamp},123 - root - INFO - {parts[0]}step: {number:6d}  {parts[1]}loss: "
            f"{rng.random() * 10:7.4f}  {parts[2]}grad_norm: {rng.random():.4f}  memory: 41.20GiB(51.97%)  "
            f"tps: {7000 + number % 99:,}  tflops: 378.41  mfu: 38.26%{parts[3]}"
        )
    if kind < 0.75:
        return (
            f" [{stamp}] iteration {number:8d}/  500000 | consumed samples: {number * 256:12d} | elapsed time per "
            f"iteration (ms): {rng.random() * 1e4:.1f} | learning rate: 2.997E-04 | global batch size:   256 | lm "
            f"loss: {rng.random() * 3:.6E} | loss scale: 1.0 | grad norm: 0.412 | number of skipped iterations:   0 | "
            f"number of nan iterations:   0 |"
        )
    if kind < 0.87:
        return (
            f"node-{rank}:81234:81567 [{rank}] NCCL INFO Channel {number % 16:02d}/0 : {rank}[{rank}] -> "
            f"{(rank + 1) % 8}[{(rank + 1) % 8}] via P2P/CUMEM/read"
        )
    if kind < 0.96:
        return f"{{'loss': {rng.random():.4f}, 'grad_norm': 1.2345678, 'learning_rate': 9.97e-06, 'epoch': 0.12}}"
    if kind < 0.98:
        return f"[{stamp}] WARNING dataloader: skipped 1 sample that is longer than the context (8123 > 4096)"
    return (
        "/opt/venv/lib/python3.11/site-packages/torch/utils/checkpoint.py:429: UserWarning: torch.utils.checkpoint: "
        "please pass in use_reentrant=True or use_reentrant=False explicitly. Error bars are not affected."
    )


def ordinary(size: int, *, colours: bool = False) -> bytes:
    rng = random.Random(7)
    made, length, number = [], 0, 0
    while length < size:
        line = ordinary_line(rng, number, colours=colours)
        made.append(line)
        length += len(line) + 1
        number += 1
    return ("\n".join(made) + "\n").encode()[:size]


def warned(size: int) -> bytes:
    """Ordinary text in which every rank prints a warning that it copes with, once per kilobyte."""
    lines = ordinary(size).split(b"\n")
    for number in range(0, len(lines), 7):
        lines[number] += b'\n%d: [n%04d] sysctl: setting key "net.core.somaxconn", ignoring: Read-only file system' % (
            number % 8,
            number % 64,
        )
    return b"\n".join(lines)[:size]


def listed(size: int) -> bytes:
    """A program that prints its own text first, as record runs do, and then its steps."""
    source = b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.rglob("*.py")))
    return (source + ordinary(16 * len(source)))[:size]


def varied(size: int) -> bytes:
    """Healthy lines that have no two words in common but a few everyday ones: what an automaton is built from."""
    rng = random.Random(11)
    made, length = [], 0
    while length < size:
        words = ["".join(rng.choices("etaoinshrdlucmfwygpbvkxqjz_", k=rng.randrange(3, 12))) for _ in range(9)]
        words[4] = rng.choice(("loading", "config", "node", "rank", "dataset", "checkpoint", "value", "cache"))
        made.append(f"{rng.random():.4f} {'='.join(words)}: {rng.randrange(10**6)}")
        length += len(made[-1]) + 1
    return ("\n".join(made) + "\n").encode()[:size]


def repeated(text: bytes, size: int) -> bytes:
    return (text * (size // len(text) + 1))[:size]


def damaged(text: bytes, size: int, rng: random.Random) -> bytes:
    """Every line differs from every other in places that keep patterns half matched: the automaton's worst input."""
    out = bytearray(text[:size])
    for _ in range(size // 30):
        out[rng.randrange(size)] = rng.randrange(32, 127)
    return bytes(out)


def inputs(size: int) -> dict[str, tuple[bytes, int]]:
    """Name to text and chunk size."""
    rng = random.Random(3)
    small = min(size, 4 << 20)
    every_line = b"".join(
        b"[rank%d]: RuntimeError: CUDA error: unspecified launch failure in step %d\n" % (n % 8, n)
        for n in range(40000)
    )
    traceback = (
        b"Traceback (most recent call last):\n  File \"/a/train.py\", line 3, in <module>\n    f()\nKeyError: 'x'\n\n"
    )
    near_misses = b"data dataset tokenizer checkpoint error Connection NCCL CUDA connect watchdog nfs Lustre HCCL "
    return {
        "ordinary training log": (ordinary(size), CHUNK_BYTES),
        "the same, coloured": (ordinary(size, colours=True), CHUNK_BYTES),
        "the same, chunks of 4 KiB": (ordinary(size), 4096),
        "a warning in every kilobyte": (warned(min(size, 16 << 20)), CHUNK_BYTES),
        "lines that are all different": (varied(min(size, 8 << 20)), CHUNK_BYTES),
        "printed source, then steps": (listed(min(size, 16 << 20)), CHUNK_BYTES),
        "a fault on every line": (repeated(every_line, small), CHUNK_BYTES),
        "fault lines, randomly damaged": (damaged(every_line, 256 << 10, rng), CHUNK_BYTES),
        "nothing but tracebacks": (repeated(traceback, small), CHUNK_BYTES),
        "lines of 1 MB": (repeated(b"x" * 1_000_000 + b"\n", small), CHUNK_BYTES),
        "lines of 1 MB of near misses": (repeated(repeated(near_misses, 1_000_000) + b"\n", small), CHUNK_BYTES),
        "binary garbage": (rng.randbytes(small), CHUNK_BYTES),
        "only line ends": (b"\n" * small, CHUNK_BYTES),
        "a traceback that never ends": (
            b"Traceback (most recent call last):\n" + repeated(b"  x\n", small),
            CHUNK_BYTES,
        ),
    }


def rates_of(base: Base, text: bytes, chunk: int) -> tuple[float, float, int]:
    """Megabytes a second, first and best of the rounds, and the number of findings."""
    engine = Engine(base.signatures)
    engine.prepare()
    rates, found = [], 0
    for _ in range(1 + ROUNDS):
        matcher = Matcher(base, now=NOW, engine=engine)
        began = time.process_time()
        for start in range(0, len(text), chunk):
            matcher.feed("log", text[start : start + chunk])
        found = len(matcher.finish())
        rates.append(len(text) / (time.process_time() - began) / 1e6)
    return rates[0], max(rates), found


def timed(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def read_as_analyze_does(folders: list[Path]) -> None:
    """The first reading of each in a process that has read nothing but those before it."""
    for folder in folders:
        sizes = [min(path.stat().st_size, WHOLE_BYTES) for path in folder.rglob("*") if path.is_file()]
        spent_s = timed(lambda folder=folder: read_folder(folder, NOW))
        print(f"{folder.name}: {len(sizes)} files, {sum(sizes) / 1e6 / spent_s:.1f} MB/s of {sum(sizes) / 1e6:.0f} MB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mb", type=int, default=64, metavar="N", help="megabytes of ordinary text")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--analyze", nargs="+", type=Path, metavar="DIR", help="only read these folders of logs")
    given = parser.parse_args()
    if given.analyze:
        read_as_analyze_does(given.analyze)
        return
    load_s = min(timed(load_base) for _ in range(ROUNDS))
    base = load_base()
    compile_s = min(timed(lambda: Engine(base.signatures)) for _ in range(ROUNDS))
    prepare_s = min(timed(Engine(base.signatures).prepare) for _ in range(ROUNDS))
    rows = []
    for name, (text, chunk) in inputs(given.mb << 20).items():
        first, rate, found = rates_of(base, text, chunk)
        row = {"input": name, "first_mb_per_s": round(first, 1), "mb_per_s": round(rate, 1)}
        rows.append({**row, "findings": found, "mb": len(text) >> 20})
    patterns = sum(len(s.patterns) for s in base.signatures)
    result = {
        "signatures": len(base.signatures),
        "patterns": patterns,
        "load_s": round(load_s, 4),
        "compile_s": round(compile_s, 4),
        "prepare_s": round(prepare_s, 4),
        "max_rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
        "rates": rows,
    }
    if given.json:
        print(json.dumps(result))
        return
    print(f"{len(base.signatures)} signatures, {patterns} patterns; load {load_s:.3f} s, compile {compile_s:.3f} s")
    print(f"the net of words in front of them: {prepare_s:.3f} s")
    for row in rows:
        rates = f"{row['first_mb_per_s']:>9} {row['mb_per_s']:>9} MB/s"
        print(f"{row['input']:<32} {rates}   {row['findings']} findings in {row['mb']} MB")
    print(f"peak memory {result['max_rss_mib']} MiB, the texts included")


if __name__ == "__main__":
    main()
