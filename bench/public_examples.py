"""Unchanged public examples under torchrun and under everstep: same words, same files, same logs, same exit code.

DIR holds the sources that you fetched, a folder for each project (accelerate, transformers, pytorch-lightning,
pytorch-examples, nanoGPT, minGPT); none of their text is here. Models and data that an example would load from a hub
are made here, tiny and random, under the names that it asks for. On CPU, two ranks, or one where an example takes no
notice of the other. Each runs under torchrun, under everstep, and under everstep with a SIGKILL of a rank in its
middle, which has to end as if nobody had been killed. Where there is a difference, torchrun runs again (with the same
kill, and --max-restarts 3): what it does not do twice alike either is counted apart.

    python bench/public_examples.py DIR [--only WORD,...] [--no-kill] [--json FILE] [--keep DIR] [--list]

Exit code 0: no difference but torchrun's own.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from measuring.figures import table
from measuring.launched import Launched, adopt_orphans, descendants, end_on_sigterm, launched
from sameness.example_compare import after_a_kill, not_of, plain
from sameness.example_data import put
from sameness.example_list import EXAMPLES, Example
from sameness.same_compare import Outcome, differences, outcome

LIMIT_S = 600.0
LAUNCHERS = {
    "torchrun": (sys.executable, "-P", "-m", "torch.distributed.run"),
    "everstep": (sys.executable, "-P", "-m", "everstep", "run"),
}


@dataclass(kw_only=True)
class Compared:
    """`found`, `own`: run -> differences from torchrun that are everstep's, and those that torchrun has with itself."""

    name: str
    absent: str = ""
    exit_code: int | None = None
    took_s: dict[str, float] = field(default_factory=dict)
    found: dict[str, list[str]] = field(default_factory=dict)
    own: dict[str, list[str]] = field(default_factory=dict)
    files: int = 0
    lines: int = 0


class NotKilledError(Exception):
    """An example that ended before its middle was seen."""


def main(argv: Sequence[str] | None = None) -> int:
    args = _arguments(argv)
    chosen = [each for each in EXAMPLES if not args.only or any(word in each.name for word in args.only)]
    if args.list:
        print("\n".join(each.name for each in chosen))
        return 0
    adopt_orphans()
    end_on_sigterm()
    results: list[Compared] = []
    with tempfile.TemporaryDirectory(prefix="everstep-bench-", ignore_cleanup_errors=True) as scratch:
        for example in chosen:
            results.append(_compare(example, Path(scratch), args))
            print(_told(results[-1]), file=sys.stderr, flush=True)
            if args.json is not None:
                args.json.write_text(json.dumps([asdict(one) for one in results], indent=1) + "\n")
    print(report(results))
    return 1 if any(one.found for one in results) else 0


def _compare(example: Example, root: Path, args: argparse.Namespace) -> Compared:
    made = Compared(name=example.name)
    source = args.sources / example.project / example.folder
    made.absent = ", ".join(example.missing) or ("" if (source / example.script).exists() else str(source))
    if made.absent:
        return made
    place = root / "example"
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(source, place / "template", ignore=shutil.ignore_patterns(".git", "__pycache__"))
    for what in example.data:
        put(what, place / "template")

    def run(launcher: str, *flags: str, kill: bool = False) -> Outcome:
        taken = _run(example, place, launcher, flags, kill=kill)
        if (source / example.script).read_bytes() != (place / "work" / example.script).read_bytes():
            raise RuntimeError(f"{example.name} was changed")
        made.took_s[f"{launcher}{', killed' if kill else ''}"] = round(taken.took_s, 1)
        if args.keep is not None:
            _keep(args.keep / example.name.replace("/", "-") / f"{launcher}{'-killed' if kill else ''}", taken)
        return plain(taken, draws=example.draws)

    expected = run("torchrun")
    made.exit_code, made.files = expected.exit_code, len(expected.files)
    made.lines = sum(text.count(b"\n") for text in expected.streams.values())
    # Not told otherwise, everstep tries once more what failed (docs/torchrun.md); torchrun's default is 0.
    as_torchrun = () if expected.exit_code == 0 else ("--max-restarts", "0")
    found = differences(expected, run("everstep", *as_torchrun))
    _judge(made, "everstep", found, lambda: differences(expected, run("torchrun")))
    if example.midway is not None and expected.exit_code == 0 and not args.no_kill:
        try:
            taken = run("everstep", kill=True)
            if not any(" try 1 " in name for name in taken.streams):
                raise NotKilledError("its ranks had ended when the last one was to be killed")
            killed = after_a_kill(expected, taken)
            again = ("--max-restarts", "3")
            _judge(made, "killed", killed, lambda: after_a_kill(expected, run("torchrun", *again, kill=True)))
        except NotKilledError as error:
            made.found["killed"] = [str(error)]
    return made


def _judge(made: Compared, run: str, found: list[str], own: Callable[[], list[str]]) -> None:
    if not found:
        return
    of_torchrun = own()
    if mine := not_of(found, of_torchrun):
        made.found[run] = mine
    if others := [each for each in found if each not in mine]:
        made.own[run] = others


def _run(example: Example, place: Path, launcher: str, more: Sequence[str], *, kill: bool) -> Outcome:
    """In the same folder each time, because programs print where they are."""
    work, logs = place / "work", place / "logs"
    for path in (work, logs, place / "cache", place / "tmp"):
        shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(place / "template", work)
    (place / "tmp").mkdir()
    stdout, stderr = place / "stdout", place / "stderr"
    stdout.unlink(missing_ok=True)
    stderr.unlink(missing_ok=True)
    flags = ["--standalone", "--nproc-per-node", str(example.ranks), "--log-dir", str(logs), "-r", "3", *more]
    command = [*LAUNCHERS[launcher], *flags, example.script, *example.arguments.split()]
    begun = time.monotonic()
    with launched(command, env=_env(example, place, kill=kill), output=stderr, stdout=stdout, cwd=work) as running:
        if kill:
            _strike(example, running, work, logs)
        code = running.wait(LIMIT_S)
    taken = outcome(work, logs, stdout.read_bytes(), code, time.monotonic() - begun)
    for name in list(taken.files):  # unmasked: a masked path breaks an archive, and the place is the same
        before = place / "template" / name
        taken.files[name] = (work / name).read_bytes()
        if before.exists() and before.read_bytes() == taken.files[name]:
            del taken.files[name]
    return taken


def _env(example: Example, place: Path, *, kill: bool) -> dict[str, str]:
    env = {name: value for name, value in os.environ.items() if name not in ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES")}
    env |= {"EVERSTEP_HOME": str(place / "home"), "TMPDIR": str(place / "tmp"), "PYTHONUNBUFFERED": "1"}
    env["PYTHONHASHSEED"] = "0"  # else what prints a set prints it in another order each time
    env |= {"HF_HOME": str(place / "cache"), "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "WANDB_MODE": "offline"}
    if kill:
        env["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"  # else torchrun 2.13's second generation hangs (pytorch#167288)
    return env | dict(example.env)


def _strike(example: Example, running: Launched, work: Path, logs: Path) -> None:
    """SIGKILL the last rank as soon as the example's middle is seen."""
    deadline = time.monotonic() + LIMIT_S
    while not _is_midway(example.midway or "", work, logs):
        if running.exit_code() is not None or time.monotonic() > deadline:
            raise NotKilledError(f"{example.midway!r} was not seen while it ran (exit code {running.exit_code()})")
        time.sleep(0.05)
    os.kill(_rank(running, example.ranks - 1), 9)


def _is_midway(sign: str, work: Path, logs: Path) -> bool:
    wanted = sign.encode()
    return any(wanted in path.read_bytes() for path in logs.rglob("std*.log")) or any(
        sign in f"{path.relative_to(work)}/" for path in work.rglob("*")
    )


def _rank(running: Launched, rank: int) -> int:
    """Its process: the first below the launcher that was started as this rank; what it started itself comes later."""
    for pid in descendants(running.pid):
        try:
            variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if f"RANK={rank}".encode() in variables:
            return pid
    raise NotKilledError(f"rank {rank} has no process")


def _keep(folder: Path, taken: Outcome) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in taken.streams.items():
        (folder / name.replace(" ", "-")).write_bytes(text)
    for name, data in taken.files.items():
        (folder / "files" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "files" / name).write_bytes(data)


def _told(one: Compared) -> str:
    if one.absent:
        return f"{one.name}: absent: {one.absent}"
    took = ", ".join(f"{name} {seconds} s" for name, seconds in one.took_s.items())
    lines = [f"{one.name}: exit code {one.exit_code}, {one.lines} lines, {one.files} files; {took}"]
    lines += [f"    {run}: {what}" for run, several in one.found.items() for what in several]
    lines += [f"    {run}, torchrun's own: {what}" for run, several in one.own.items() for what in several]
    return "\n".join(lines)


def report(results: Sequence[Compared]) -> str:
    rows = [
        [
            one.name,
            "—" if one.exit_code is None else str(one.exit_code),
            str(one.lines),
            str(one.files),
            _verdict(one, "everstep"),
            _verdict(one, "killed"),
        ]
        for one in results
        if not one.absent
    ]
    ran = [one for one in results if not one.absent]
    differ = sum(bool(one.found) for one in ran)
    projects = len({one.name.split("/")[0] for one in ran})
    lines = [table(["example", "exit", "lines", "files", "everstep", "and a kill"], rows), ""]
    lines += [f"absent: {one.name}: {one.absent}" for one in results if one.absent]
    lines.append(f"{len(ran)} examples of {projects} projects, {differ} differ")
    return "\n".join(lines)


def _verdict(one: Compared, run: str) -> str:
    if run == "killed" and not any("killed" in name for name in one.took_s) and run not in one.found:
        return "—"
    told = "differs" if run in one.found else "same"
    return f"{told}, {len(one.own[run])} of torchrun's own" if run in one.own else told


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", type=Path, metavar="DIR")
    parser.add_argument("--only", type=lambda text: text.split(","), default=[], metavar="WORD,...")
    parser.add_argument("--no-kill", action="store_true")
    parser.add_argument("--list", action="store_true", help="name the examples, run nothing")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="what each run wrote")
    parser.add_argument("--json", type=Path, metavar="FILE", help="written after each example")
    args = parser.parse_args(argv)
    args.sources = args.sources.resolve()
    return args


if __name__ == "__main__":
    sys.exit(main())
