"""How long a folder of a large job's flight records takes, here and with torch's own analyzer."""

import json
import os
import resource
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

from matrix.flights import Shape
from matrix.many_flights import write_folder

NUM_ENTRIES = 2_000
NUM_FRAMES = 25
_TENSOR, _PIPELINE = 8, 5
_GUILTY = "guilty.json"


def measure(num_ranks: int, seed: int, folder: Path | None) -> None:
    """Prints one row for each analyzer."""
    with tempfile.TemporaryDirectory() as made:
        root = folder or Path(made)
        dumps = root / "dumps"
        if not (root / _GUILTY).exists():
            dumps.mkdir(parents=True)
            shape = Shape(_TENSOR, _PIPELINE, max(1, num_ranks // (_TENSOR * _PIPELINE)))
            (root / _GUILTY).write_text(json.dumps(write_folder(dumps, shape, NUM_ENTRIES, NUM_FRAMES, seed)))
        guilty = json.loads((root / _GUILTY).read_text())
        size = sum(path.stat().st_size for path in dumps.iterdir())
        print(f"{len(list(dumps.iterdir()))} records, {size / 1e6:.0f} MB, guilty: rank {guilty}")
        print(f"{'analyzer':<14}{'s':>8}{'CPU s':>8}{'MiB':>8}  says")
        programs = Path(sysconfig.get_path("scripts"))
        _row("everstep", [sys.executable, "-m", "everstep", "analyze", str(dumps)])
        _row("torchfrtrace", [str(programs / "torchfrtrace"), str(dumps)])


def _row(name: str, command: list[str]) -> None:
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=os.environ)
    assert process.stdout is not None
    lines = process.stdout.read().splitlines() or [""]
    process.wait()
    took, after = time.monotonic() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    told = lines[0] if name == "everstep" else lines[-1]
    print(f"{name:<14}{took:>8.1f}{cpu:>8.1f}{after.ru_maxrss >> 10:>8}  {told[:150]}")  # the largest process so far
