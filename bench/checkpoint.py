"""What a save costs a training: torch.distributed.checkpoint, DLRover, NVIDIA and everstep, side by side.

Each launch is one training of gloo ranks whose slices of a few seconds take turns: no saves, a plain memory copy of the
same bytes, saves. Launches of all ways alternate. Prints stall per save, its ratio to the plain copy, what a save adds
to the training, when it was whole, and how long a restore takes. Ends everything it started, also on Ctrl-C.

    python bench/checkpoint.py [--quick] [--sizes 2x500,2x2000,4x500,4x1000] [--kinds device,host] [--only NAME,...]
"""

import argparse
import contextlib
import json
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from measuring.display import progress
from measuring.launched import Launched, adopt_orphans, end_on_sigterm, launched
from measuring.slices import turns
from saving.checkpoint_figures import Sample
from saving.checkpoint_peers import TITLES, Way, ways
from saving.checkpoint_report import report

SCRIPT = Path(__file__).parent / "saving/checkpoint_script.py"
KINDS = ("device", "host")
SIZES = "2x500,2x2000,4x500,4x1000"
_LAUNCH_TIMEOUT_S = 420.0
_MEMORY_SHARE = 0.8  # of the machine: beyond it the page cache of the savers to disk is measured, not they


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One table: ranks, state per rank, and what a step is."""

    num_ranks: int
    state_mb: int
    kind: str

    @property
    def title(self) -> str:
        return f"{self.num_ranks} ranks x {self.state_mb} MB, {self.kind}-like steps"

    def num_buffers(self) -> int:
        """Of everstep: its default of 5, or as many as fit beside parameters, gradients, moments and the plain copy."""
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        per_rank = _MEMORY_SHARE * total / self.num_ranks / (self.state_mb * 1e6)
        return max(2, min(5, int(per_rank - 4 / 3 - 1)))


class FailedError(Exception):
    """A launch that gave no figures."""


def main(argv: Sequence[str] | None = None) -> int:
    args = _arguments(argv)
    adopt_orphans()
    end_on_sigterm()
    console = Console(stderr=True)
    entrants = ways(args.only or list(TITLES), install=not args.no_install)
    for way in entrants:
        console.print(f"  {way.title:<30} {way.version if way.absent is None else f'absent: {way.absent}'}")
    settings = [
        Setting(num_ranks=ranks, state_mb=state_mb, kind=kind) for ranks, state_mb in args.sizes for kind in args.kinds
    ]
    found: dict[Setting, dict[str, Sample]] = {}
    with _tidied_shared_memory():
        _measure_all(entrants, settings, found, args, console)
    print("\n\n".join(report(one.title, entrants, samples, one.num_buffers()) for one, samples in found.items()))
    if args.json is not None:
        args.json.write_text(json.dumps(_document(entrants, found, args), indent=1) + "\n")
    return 0 if any(sample.stalls for samples in found.values() for sample in samples.values()) else 1


def _measure_all(
    entrants: list[Way],
    settings: list[Setting],
    found: dict[Setting, dict[str, Sample]],
    args: argparse.Namespace,
    console: Console,
) -> None:
    present = {way.name: way for way in entrants if way.absent is None}
    with progress(console) as bar:
        task = bar.add_task("saves", total=len(settings) * args.rounds * len(present))
        for setting in settings:
            samples = found.setdefault(setting, {name: Sample() for name in present})
            for round_ in range(args.rounds):
                for name in turns(list(present), round_):
                    bar.update(task, description=f"{setting.title}: {TITLES[name]}")
                    try:
                        _launch(present[name], setting, samples[name], args)
                    except (FailedError, OSError, ValueError, KeyError) as error:
                        samples[name].failures.append(f"{type(error).__name__}: {error}")
                        console.print(f"  {setting.title}: {TITLES[name]} failed: {error}", soft_wrap=True)
                    bar.advance(task)


def _launch(way: Way, setting: Setting, sample: Sample, args: argparse.Namespace) -> None:
    """One training, start to end; its figures go into the sample."""
    with tempfile.TemporaryDirectory(prefix="everstep-bench-", ignore_cleanup_errors=True) as scratch:
        folder = Path(scratch)
        os.sync()  # what was saved before must not be written during this one
        env = {**os.environ, "EVERSTEP_HOME": scratch, "TMPDIR": scratch, "PYTHONWARNINGS": "ignore"}
        line = way.command(setting.num_ranks, folder=folder, num_buffers=setting.num_buffers())
        what = [way.name, str(setting.state_mb), setting.kind, str(args.blocks), str(args.steps), scratch]
        with launched([*line, str(SCRIPT), *what], env=env, output=folder / "output.log") as running:
            code = _ended(running)
            if code != 0 and not way.is_ours:
                raise FailedError(f"exit code {code}: {_reason(running)}")
            records = {rank: _records(folder / f"rank-{rank}.jsonl", running) for rank in range(setting.num_ranks)}
        sample.add(records)
        if way.name == "everstep-disk":
            sample.persisted += _persisted(folder / "run" / "journal.jsonl")


def _ended(running: Launched) -> int:
    deadline = time.monotonic() + _LAUNCH_TIMEOUT_S
    while (code := running.wait(0.2)) is None:
        if time.monotonic() > deadline:
            raise FailedError(f"still running after {_LAUNCH_TIMEOUT_S:g} s: {_reason(running)}")
    return code


def _reason(running: Launched) -> str:
    """The first line of its output that ends a traceback, or its last line."""
    lines = running.last_output(200_000).splitlines()
    errors = [line for line in lines if "Error: " in line]
    return (errors or lines or ["no output"])[0][:300]


def _records(path: Path, running: Launched) -> list[dict[str, Any]]:
    if not path.exists():
        raise FailedError(f"a rank has written nothing: {_reason(running)}")
    return [json.loads(line) for line in path.read_text().splitlines()]


def _persisted(journal: Path) -> list[float]:
    """From the order to persist a step to its commit, as the journal tells it."""
    ordered: dict[int, float] = {}
    took = []
    for line in journal.read_text().splitlines():
        record = json.loads(line)
        event = record.get("event", {})
        for action in record.get("actions", ()):
            if action["type"] == "PersistSnapshot":
                ordered.setdefault(action["step"], event["at"])
        if event.get("type") == "CheckpointCommitted" and not event.get("why") and event["step"] in ordered:
            took.append(event["at"] - ordered[event["step"]])
    return took


@contextlib.contextmanager
def _tidied_shared_memory() -> Iterator[None]:
    """Peers that are killed leave segments, semaphores and sockets with names behind; everstep has none."""
    before = set(Path("/dev/shm").iterdir())
    try:
        yield
    finally:
        for path in set(Path("/dev/shm").iterdir()) - before:
            is_theirs = "_ckpt_shm_" in path.name or path.name.startswith(("sem.mp-", "torch_"))
            if is_theirs and not _is_mapped(path.name):
                path.unlink(missing_ok=True)
            if "_ckpt_shm_" in path.name:
                shutil.rmtree(Path("/tmp/ckpt_sock", path.name.split("_ckpt_shm_")[0]), ignore_errors=True)


def _is_mapped(name: str) -> bool:
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):
            if name in maps.read_text():
                return True
    return False


def _document(entrants: list[Way], found: dict[Setting, dict[str, Sample]], args: argparse.Namespace) -> dict[str, Any]:
    return {
        "benchmark": "checkpoint",
        "machine": {"cpus": os.cpu_count(), "kernel": platform.release(), "python": platform.python_version()},
        "rounds": args.rounds,
        "blocks": args.blocks,
        "steps": args.steps,
        "ways": [asdict(way) for way in entrants],
        "settings": [
            {**asdict(setting), "buffers": setting.num_buffers(), "samples": {n: asdict(s) for n, s in samples.items()}}
            for setting, samples in found.items()
        ],
    }


def _names(text: str) -> list[str]:
    return _each(text, tuple(TITLES))


def _kinds(text: str) -> list[str]:
    return _each(text, KINDS)


def _each(text: str, allowed: tuple[str, ...]) -> list[str]:
    names = text.split(",")
    unknown = [name for name in names if name not in allowed]
    if unknown:
        raise argparse.ArgumentTypeError(f"no {unknown[0]!r}; there are: {', '.join(allowed)}")
    return names


def _sizes(text: str) -> list[tuple[int, int]]:
    try:
        return [(int(one.split("x")[0]), int(one.split("x")[1])) for one in text.split(",")]
    except (ValueError, IndexError):
        raise argparse.ArgumentTypeError(f"{text!r}: RANKSxMEGABYTES,..., like {SIZES}") from None


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", type=_names, metavar="NAME,...", help=f"of {', '.join(TITLES)}; default all")
    parser.add_argument("--sizes", type=_sizes, default=_sizes(SIZES), help=f"ranks x MB of state each ({SIZES})")
    parser.add_argument("--kinds", type=_kinds, default=list(KINDS), help="of steps: device, host (default both)")
    parser.add_argument("--rounds", type=int, default=2, help="launches of each (default %(default)s)")
    parser.add_argument("--blocks", type=int, default=5, help="per launch (default %(default)s)")
    parser.add_argument("--steps", type=int, default=8, help="per slice (default %(default)s)")
    parser.add_argument("--quick", action="store_true", help="one launch of each, two ranks, 500 MB, device-like")
    parser.add_argument("--no-install", action="store_true", help="use what is there")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args(argv)
    if args.quick:
        args.sizes, args.kinds, args.rounds, args.blocks = [(2, 500)], ["device"], 1, 3
    return args


if __name__ == "__main__":
    raise SystemExit(main())
