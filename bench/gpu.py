"""Everything that only a GPU can show, in one command of at most ten minutes on a machine with one GPU and no network.

    python bench/gpu.py [--only PART,...] [--budget SECONDS] [--out FOLDER] [--keep FOLDER] [--python PATH]
    python bench/gpu.py --prefetch [--torch VERSION]     # before, where there is a network

Finds a Python whose torch sees a device, brings everstep's own dependencies along, runs each part in a process of its
own with its own limit, and goes on after a part that fails. FOLDER/gpu.json and FOLDER/gpu.md are whole after every
figure; FOLDER/gpu.log has the last words of each process. `--device cpu` is a rehearsal: the same code with small
states on the CPU; what has no meaning there is skipped by name. Without a GPU it says so in one line and ends with 3.
Ends with 1 if a part failed or a goal was missed.
"""

import argparse
import os
import platform
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpu_running import interpreter, wheels
from gpu_running.keeping import SKIPPED, Keeping, Kept
from gpu_running.parts import PARTS, Part
from gpu_running.running import run_part
from measuring.launched import adopt_orphans, end_on_sigterm

ROOT = Path(__file__).resolve().parents[1]
NO_GPU = 3
_SIZES_GB, _SMALL_GB = (0.5, 4.0, 16.0), (0.02,)
_MARGIN_S = 8.0  # to end what a part has started


class UnusableError(Exception):
    """The parts cannot be run here."""


def main(argv: Sequence[str] | None = None) -> int:
    args = _arguments(argv)
    if args.prefetch:
        size = wheels.prefetch(args.wheels, args.pythons, args.torch)
        print(f"{args.wheels}: {size / 2**20:.0f} MiB of wheels for Python {', '.join(args.pythons)}")
        return 0
    began = time.monotonic()
    try:
        chosen = _choose(args)
        env = {**os.environ, **_complete(chosen, args), "EVERSTEP_HOME": str(args.out.resolve() / "home")}
    except UnusableError as why:
        print(f"no GPU: {why}")
        return NO_GPU
    adopt_orphans()
    end_on_sigterm()
    args.out.mkdir(parents=True, exist_ok=True)
    parts = [part for part in PARTS if not args.only or part.name in args.only]
    keep = args.keep or args.out
    keep.mkdir(parents=True, exist_ok=True)
    (keep / "gpu.log").unlink(missing_ok=True)
    keeping = Keeping(keep.resolve(), _about(chosen, args), [Kept(part.name, part.title) for part in parts])
    for part, kept in zip(parts, keeping.parts, strict=True):
        left_s = args.budget - (time.monotonic() - began) - _MARGIN_S
        _one(part, kept, left_s, chosen.path, env, args, keeping)
    keeping.write()
    print((keep / "gpu.md").read_text(), end="")
    missed = any(figure.get("met") is False for kept in keeping.parts for figure in kept.figures)
    return 0 if all(kept.is_whole for kept in keeping.parts) and not missed else 1


def _one(
    part: Part, kept: Kept, left_s: float, python: str, env: dict[str, str], args: argparse.Namespace, keeping: Keeping
) -> None:
    sizes = [size for size in args.sizes if part.least_gb <= size < part.most_gb]
    if not sizes:
        kept.state, kept.why = SKIPPED, "no state of its size is asked for"
    elif args.device == "cpu" and part.on_cpu:
        kept.state, kept.why = SKIPPED, part.on_cpu
    elif left_s < 1.0:
        kept.state, kept.why = SKIPPED, f"no time left of {args.budget:g} s"
    if kept.state:
        keeping.write()
        return
    print(f"{part.title} ...", file=sys.stderr, flush=True)
    folder = args.out.resolve() / "parts" / part.name
    request: dict[str, Any] = {
        "device": args.device,
        "folder": str(folder),
        "sizes_gb": sizes,
        "out": str(folder) + ".jsonl",
    }
    folder.mkdir(parents=True, exist_ok=True)
    Path(request["out"]).unlink(missing_ok=True)
    run_part(part, kept, request, python, env, min(part.limit_s * args.patience, left_s), keeping.write)
    keeping.append_log(kept, sorted(folder.rglob("output.log")))


def _choose(args: argparse.Namespace) -> interpreter.Interpreter:
    needs_device = args.device != "cpu"
    seen = interpreter.devices_seen()
    if needs_device and not seen:
        raise UnusableError("this machine shows none (no /dev/nvidia0, no nvidia-smi); docs/gpu.md says what it is for")
    found, asked = interpreter.find(args.python, needs_device=needs_device)
    if found is not None:
        return found
    if wheels.has_torch(args.wheels):
        return interpreter.Interpreter(sys.executable, tuple(sys.version_info[:3]), torch="to be installed")
    said = "; ".join(f"{each.title}{f': {each.why}' if each.why else ''}" for each in asked)
    raise UnusableError(f"there may be one ({seen}), and no torch here sees it: {said}")


def _complete(chosen: interpreter.Interpreter, args: argparse.Namespace) -> dict[str, str]:
    """Variables with which the chosen Python finds this tree, and what it lacks by itself."""
    target = args.out.resolve() / f"site-{'.'.join(map(str, chosen.python[:2]))}"
    given = [path for path in (os.environ.get("PYTHONPATH"),) if path]  # its torch may be there
    path = os.pathsep.join((str(ROOT / "src"), str(ROOT / "bench"), str(target), *given))
    lacking = wheels.missing(chosen.path, path)
    if chosen.torch == "to be installed":
        lacking.append("torch")
    if lacking and (why := wheels.install(chosen.path, lacking, args.wheels, target)):
        raise UnusableError(f"{chosen.title} cannot run everstep: {why}")
    return {"PYTHONPATH": path, "PATH": os.pathsep.join((os.environ.get("PATH", ""), str(target / "bin")))}


def _about(chosen: interpreter.Interpreter, args: argparse.Namespace) -> dict[str, Any]:
    return {
        "device": chosen.device or ("rehearsal on the CPU" if args.device == "cpu" else "not known"),
        "torch": chosen.torch,
        "Python": ".".join(map(str, chosen.python)),
        "kernel": platform.release(),
        "when (UTC)": time.strftime("%Y-%m-%d %H:%M", time.gmtime()),
    }


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda:0", help="cuda:N, or cpu: a rehearsal (default: cuda:0)")
    parser.add_argument("--only", type=lambda text: text.split(","), default=[], metavar="PART,...")
    parser.add_argument("--budget", type=float, default=570.0, metavar="SECONDS", help="for all of it (default: 570)")
    parser.add_argument(
        "--patience", type=float, default=1.0, metavar="TIMES", help="for a slow machine: longer limits"
    )
    parser.add_argument("--out", type=Path, default=ROOT / "build/gpu", metavar="FOLDER")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="for gpu.json, gpu.md and gpu.log (default: --out)")
    parser.add_argument("--python", default="", metavar="PATH", help="the Python to use, instead of looking for one")
    parser.add_argument("--sizes", type=_sizes, default=None, metavar="GB,...", help="states (default: 0.5,4,16)")
    parser.add_argument("--prefetch", action="store_true", help="fetch the wheels that the parts need, and end")
    parser.add_argument("--wheels", type=Path, default=ROOT / "build/gpu-wheels", metavar="FOLDER")
    parser.add_argument(
        "--pythons", type=lambda text: text.split(","), default=list(wheels.PYTHONS), metavar="3.12,..."
    )
    parser.add_argument("--torch", default="", metavar="VERSION", help="with --prefetch: torch as well, gigabytes")
    args = parser.parse_args(argv)
    unknown = set(args.only) - {part.name for part in PARTS}
    if unknown:
        parser.error(f"no part {', '.join(sorted(unknown))}; there are: {', '.join(part.name for part in PARTS)}")
    if args.sizes is None:
        args.sizes = _SMALL_GB if args.device == "cpu" else _SIZES_GB
    return args


def _sizes(text: str) -> tuple[float, ...]:
    return tuple(float(each) for each in text.split(","))


if __name__ == "__main__":
    raise SystemExit(main())
