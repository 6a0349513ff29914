"""PyTorch's own tests of its launcher, asked of `everstep run`.

Reads `test/distributed/launcher/` of a checkout of PyTorch that the caller has (of the version of the installed torch:
nothing of it is kept here), and runs each test in a process of its own, twice: as it is, and with `main` of
`torch.distributed.run` replaced by a call of `everstep run` with the same arguments, environment and output. A nonzero
exit code is the exception that torchrun raises: ValueError where the command line is refused, ChildFailedError where a
rank failed. Tests that replace parts of torchrun's inside by others cannot be asked of a command; they are named.

    python bench/torch_launcher_tests.py /path/to/pytorch [--only PART] [--markdown FILE]
"""

import argparse
import ast
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

FOLDER = "test/distributed/launcher"
LIMIT_S = 240.0
INSIDE = {
    "torch.distributed.elastic.agent.server.local_elastic_agent": "replaces torchrun's agent",
    "torch.distributed.launcher.api": "replaces parts of torchrun's API",
    "torch.accelerator.current_accelerator": "pretends a GPU in the launcher's own process",
    "launch_agent": "calls torchrun's API, not the command",
    "parse_min_max_nnodes": "calls a function of torchrun, not the command",
    "run_path(": "does not launch anything",
    "TEST_ACCELERATOR": "needs a GPU",
}
"""What a test's text says when it is about torchrun's inside, and how we call that."""


@dataclass(frozen=True, slots=True)
class Case:
    file: Path
    name: str
    not_asked: str | None


@dataclass(frozen=True, slots=True)
class Answer:
    passed: bool
    took_s: float
    why: str = ""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--only", default="", metavar="PART", help="tests whose name has it")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="append the table there")
    args = parser.parse_args(argv)
    cases = [case for case in _cases(args.checkout) if args.only in case.name]
    if not cases:
        print(f"no tests in {args.checkout / FOLDER}: is it a checkout of PyTorch?", file=sys.stderr)
        return 2
    rows, num_failed = [], 0
    for case in cases:
        if case.not_asked:
            rows.append((case.name, "not asked", "not asked", case.not_asked))
            continue
        torchrun, everstep = (_ask(case, launcher) for launcher in ("torchrun", "everstep"))
        num_failed += torchrun.passed and not everstep.passed
        rows.append((case.name, _word(torchrun), _word(everstep), everstep.why or torchrun.why))
        print(" | ".join(rows[-1]), file=sys.stderr, flush=True)
    text = "\n".join(["| test | torchrun | everstep | |", "|---|---|---|---|"] + [f"| {' | '.join(r)} |" for r in rows])
    print(text)
    if args.markdown is not None:
        with args.markdown.open("a") as file:
            file.write(text + "\n")
    return 1 if num_failed else 0


def _cases(checkout: Path) -> list[Case]:
    """Every test method below the folder, with what keeps it from being asked."""
    found = []
    for file in sorted((checkout / FOLDER).glob("test_*.py")):
        source = file.read_text()
        for group in [each for each in ast.parse(source).body if isinstance(each, ast.ClassDef)]:
            for item in group.body:
                if isinstance(item, ast.FunctionDef) and item.name.startswith("test_"):
                    decorators = [ast.get_source_segment(source, each) or "" for each in item.decorator_list]
                    text = "\n".join([*decorators, ast.get_source_segment(source, item) or ""])
                    why = next((reason for mark, reason in INSIDE.items() if mark in text), None)
                    found.append(Case(file, f"{group.name}.{item.name}", why))
    return found


def _ask(case: Case, launcher: str) -> Answer:
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="torch-tests-") as home:
        env = {**os.environ, "EVERSTEP_HOME": home, "CASE_FILE": str(case.file), "CASE_LAUNCHER": launcher}
        command = [sys.executable, str(Path(__file__).parent / "programs/torch_launcher_stand_in.py"), case.name]
        try:
            asked = subprocess.run(
                command, env=env, cwd=case.file.parent, capture_output=True, text=True, timeout=LIMIT_S, check=False
            )
        except subprocess.TimeoutExpired:
            return Answer(False, LIMIT_S, f"not over after {LIMIT_S:.0f} s")
    took_s = time.monotonic() - began
    if asked.returncode == 0 and "OK" in asked.stderr + asked.stdout:
        skipped = "skipped=" in asked.stderr
        return Answer(True, took_s, "skipped by itself" if skipped else "")
    said = [line for line in (asked.stdout + asked.stderr).splitlines() if "Error" in line or "error" in line]
    return Answer(False, took_s, (said or ["no word"])[-1].strip()[:160].replace("|", "/"))


def _word(answer: Answer) -> str:
    return f"{'passed' if answer.passed else 'FAILED'}, {answer.took_s:.0f} s"


if __name__ == "__main__":
    sys.exit(main())
