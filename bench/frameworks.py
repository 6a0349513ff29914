"""Frameworks that labs train with, each in a small program on CPUs: as under torchrun, killed, hung, with State.

    make frameworks                         # its own environment, every row, the table in docs/frameworks.md
    build/frameworks/bin/python bench/frameworks.py --only ds-zero1 mcore-dp2

Each row runs one program of `bench/framework_programs` in up to six ways and compares the losses of every step and rank
bit for bit. `next` is from the SIGKILL of the last rank to the first new step of the slowest rank.
"""

import argparse
import dataclasses
import importlib.metadata
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

BIN = Path(sys.executable).parent
PROGRAMS = Path(__file__).parent / "framework_programs"
PAGE = Path(__file__).parents[1] / "docs" / "frameworks.md"
MARK = "<!-- written by bench/frameworks.py -->"
VERSIONS = ("torch", "deepspeed", "megatron-core", "torchtitan", "transformers", "accelerate", "torchdata")
KILL_AFTER = 12
LIMIT_S = 300.0
STEPS = 30


@dataclasses.dataclass(frozen=True)
class Row:
    """One program, and the ways in which it is run."""

    name: str
    what: str
    program: str
    num_ranks: int = 2
    has_own: bool = True  # it can keep checkpoints of its own
    kill_after: int = KILL_AFTER
    forgets: bool = False  # it can be given a State of its weights alone


ROWS = [
    Row("ds-zero1", "DeepSpeed ZeRO-1, bf16", "deepspeed_train.py --zero 1", forgets=True),
    Row("ds-zero2", "DeepSpeed ZeRO-2, bf16, offload", "deepspeed_train.py --zero 2 --offload", forgets=True),
    Row("ds-zero3", "DeepSpeed ZeRO-3, bf16", "deepspeed_train.py --zero 3", forgets=True),
    Row("ds-fp16", "DeepSpeed ZeRO-2, fp16 with loss scale", "deepspeed_train.py --zero 2 --dtype fp16"),
    Row(
        "mcore-dp2",
        "Megatron-core, bf16, distributed optimizer, DP 2",
        "megatron_train.py",
        forgets=True,
    ),
    Row(
        "mcore-tp2",
        "Megatron-core, bf16, distributed optimizer, TP 2",
        "megatron_train.py --tp 2",
        forgets=True,
    ),
    Row("mcore-pp2", "Megatron-core, fp32, PP 2 x DP 2", "megatron_train.py --pp 2 --dtype fp32", 4),
    Row("titan", "torchtitan, llama3 debug model, FSDP2", "torchtitan_train.py"),
    Row("pp-fsdp2", "pipelining 1F1B x FSDP2, DCP", "pipeline_train.py", 4),
    Row("pp-tp", "pipelining 1F1B x DTensor TP, DCP", "pipeline_train.py --inner tp", 4),
    Row("hf-zero2", "Hugging Face Trainer, DeepSpeed ZeRO-2", "hf_train.py --zero 2"),
    Row("hf-zero3", "Hugging Face Trainer, DeepSpeed ZeRO-3", "hf_train.py --zero 3"),
]


@dataclasses.dataclass
class Result:
    """What one run left."""

    code: int | None
    final: dict[str, dict[int, str]]  # by rank: the loss of each step, as it was done last
    repeated: int = 0  # steps that the slowest rank did again
    back_s: float | None = None
    back_at: int | None = None
    said: str = ""
    first_s: float = 0.0  # from the command to the first step of the slowest rank
    whole_s: float = 0.0  # ... and to the command's end


def command(arm: str, row: Row, keep: str, out: Path) -> tuple[list[str], dict[str, str]]:
    program, *arguments = row.program.split()
    start = [str(PROGRAMS / program), *arguments, "--steps", str(STEPS), "--keep", keep]
    if arm == "torchrun":
        more = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        begin = ["torchrun", "--standalone", f"--nproc-per-node={row.num_ranks}", "--max-restarts=3"]
    else:
        more = {}
        begin = ["everstep", "run", "--standalone", f"--nproc-per-node={row.num_ranks}", "--run-dir", str(out / "run")]
    return [str(BIN / begin[0]), *begin[1:], *start], more


def lines(out: Path) -> dict[str, list[tuple[int, str, int, float]]]:
    found = {}
    for path in sorted(out.glob("steps.*.txt")):
        rows = [line.split() for line in path.read_text().splitlines()]
        found[path.name.split(".")[1]] = [(int(r[0]), r[1], int(r[2]), float(r[3])) for r in rows if len(r) == 4]
    return found


def run(arm: str, row: Row, keep: str, out: Path, *, kill: bool = False, hang: bool = False) -> Result:
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    start, more = command(arm, row, keep, out)
    environment = {**os.environ, **more, "FW_OUT": str(out), "EVERSTEP_HOME": str(out / "home"), "OMP_NUM_THREADS": "1"}
    environment.setdefault("TORCH_EXTENSIONS_DIR", str(BIN.parent / "torch_extensions"))  # as the Makefile has it
    if kill:
        environment["FW_PACE_S"] = environment.get("FW_KILLED_PACE_S", "0.1")
    if hang:
        environment["FW_HANG"] = f"{row.kill_after}:{row.num_ranks - 1}"
    began = time.time()
    with (out / "log.txt").open("wb") as log:
        process = subprocess.Popen(start, stdout=log, stderr=log, env=environment, cwd=out, start_new_session=True)
    killed_at = _kill(process, row, out, began) if kill else None
    try:
        code: int | None = process.wait(max(1.0, LIMIT_S - (time.time() - began)))
    except subprocess.TimeoutExpired:
        code = None
        os.killpg(process.pid, signal.SIGINT)
        try:
            process.wait(45)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    whole_s, ranks = time.time() - began, lines(out)
    result = _result(code, ranks, killed_at, (out / "log.txt").read_text(errors="replace"))
    result.first_s, result.whole_s = max((rows[0][3] for rows in ranks.values()), default=began) - began, whole_s
    return result


def _kill(process: subprocess.Popen[bytes], row: Row, out: Path, began: float) -> float | None:
    rank = str(row.num_ranks - 1)
    while process.poll() is None and time.time() - began < LIMIT_S:
        done = lines(out).get(rank, [])
        if done and done[-1][0] >= row.kill_after:
            (out / "killed").touch()
            os.kill(done[-1][2], signal.SIGKILL)
            return time.time()
        time.sleep(0.02)
    return None


def _result(
    code: int | None, ranks: dict[str, list[tuple[int, str, int, float]]], killed_at: float | None, said: str
) -> Result:
    final = {rank: {step: loss for step, loss, *_ in rows} for rank, rows in ranks.items()}
    repeated = max((len(rows) - len(final[rank]) for rank, rows in ranks.items()), default=0)
    result = Result(code, final, repeated, said=said)
    if killed_at is not None:
        before = {rank: {pid for *_, pid, at in rows if at <= killed_at} for rank, rows in ranks.items()}
        after = [[r for r in rows if r[3] > killed_at and r[2] not in before[rank]] for rank, rows in ranks.items()]
        if after and all(after):
            result.back_s = max(rows[0][3] for rows in after) - killed_at
            result.back_at = min(rows[0][0] for rows in after)
    return result


def compare(expected: Result, found: Result) -> str:
    if found.code != expected.code:
        return f"exit {found.code}"
    steps = {(rank, step) for one in (expected, found) for rank, by in one.final.items() for step in by}
    wrong = sorted(s for r, s in steps if expected.final.get(r, {}).get(s) != found.final.get(r, {}).get(s))
    return f"{len(wrong)} of {len(steps)} losses differ, first at step {wrong[0]}" if wrong else "yes"


def hang_text(result: Result) -> str:
    found = [line.split(" ES-", 1)[1] for line in result.said.splitlines() if " ES-H" in line]
    recovered = "recovered" if result.code == 0 else f"exit {result.code}"
    return f"ES-{found[0].split('.')[0]}; {recovered}" if found else f"not named; {recovered}"


def measure(row: Row, out: Path, ways: set[str]) -> dict[str, str]:
    load = f"{os.getloadavg()[0]:.0f}"
    reference = run("torchrun", row, "none", out / "torchrun")
    found = {"name": row.name, "what": row.what, "load": load}
    if reference.code != 0:
        return found | {"same": f"torchrun: exit {reference.code}"}
    if "same" in ways:
        found["same"] = compare(reference, run("everstep", row, "none", out / "everstep"))
    if "ends" in ways:
        found["first"], found["whole"] = ends(row, out)
    if "own" in ways and row.has_own:
        theirs = run("torchrun", row, "own", out / "torchrun-own", kill=True)
        ours = run("everstep", row, "own", out / "everstep-own", kill=True)
        ratio = f", {ours.back_s / theirs.back_s:.2f}" if ours.back_s and theirs.back_s else ""
        found["own"] = f"{_s(ours.back_s)} / {_s(theirs.back_s)}{ratio}, at step {ours.back_at} / {theirs.back_at}"
        found["own_same"] = compare(theirs, ours) if theirs.code == 0 else f"torchrun: exit {theirs.code}"
    if "state" in ways:
        kept = run("everstep", row, "state", out / "everstep-state", kill=True)
        found["state"] = compare(reference, kept)
        found["lost"] = str(kept.repeated)
        found["next"] = _s(kept.back_s)
    if "forgotten" in ways and row.forgets:
        bare = run("everstep", row, "weights", out / "everstep-forgotten", kill=True)
        is_refused = "keeps no snapshots" in bare.said and bare.back_at == 0
        found["forgotten"] = "refused" if is_refused and compare(reference, bare) == "yes" else "NOT refused"
    if "hang" in ways:
        found["hang"] = hang_text(run("everstep", row, "state", out / "everstep-hang", hang=True))
    return found | {"load": f"{load} to {os.getloadavg()[0]:.0f}"}


def ends(row: Row, out: Path, pairs: int = 5) -> tuple[str, str]:
    """First step and whole run, everstep beside torchrun: the median of the pairs' ratios, and all of them."""
    taken = [
        (run("everstep", row, "none", out / "everstep-ends"), run("torchrun", row, "none", out / "torchrun-ends"))
        for _ in range(pairs)
    ]
    firsts = [ours.first_s / theirs.first_s for ours, theirs in taken]
    wholes = [ours.whole_s / theirs.whole_s for ours, theirs in taken]
    return _ratios(firsts), _ratios(wholes)


def _ratios(found: list[float]) -> str:
    return f"{statistics.median(found):.2f} ({min(found):.2f} to {max(found):.2f})"


def _s(seconds: float | None) -> str:
    return "not back" if seconds is None else f"{seconds:.1f} s"


def table(rows: list[dict[str, str]]) -> str:
    heads = {
        "what": "",
        "same": "as under torchrun",
        "first": "first step, everstep / torchrun",
        "whole": "whole run",
        "own": "own checkpoints, kill to next step: everstep / torchrun, ratio",
        "own_same": "... losses the same in both",
        "state": "State: identical",
        "lost": "steps done again",
        "next": "kill to next step",
        "forgotten": "State of the weights alone",
        "hang": "hang",
        "load": "load of the machine",
    }
    text = ["| " + " | ".join(heads.values()) + " |", "|" + "---|" * len(heads)]
    text += ["| " + " | ".join(row.get(key, "") for key in heads) + " |" for row in rows]
    return "\n".join(text)


def write(rows: list[dict[str, str]]) -> None:
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in VERSIONS)
    before, _, after = PAGE.read_text().partition(MARK)
    _, _, after = after.partition(MARK)
    PAGE.write_text(f"{before}{MARK}\n\n{table(rows)}\n\n{versions}; Python {sys.version.split()[0]}.\n\n{MARK}{after}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[], help="names of rows")
    parser.add_argument("--ways", nargs="*", default=["same", "own", "state", "forgotten", "hang"])
    parser.add_argument("--out", type=Path, default=Path("build/framework-runs"))
    parser.add_argument("--write", action="store_true", help="the table into docs/frameworks.md")
    parser.add_argument("--pace", default="0.1", help="seconds of a step before the kill: 2 kills half a minute later")
    arguments = parser.parse_args()
    os.environ["FW_KILLED_PACE_S"] = arguments.pace
    known = arguments.out.resolve() / "results.json"
    results: dict[str, dict[str, str]] = json.loads(known.read_text()) if known.exists() else {}
    for row in ROWS:
        if not arguments.only or row.name in arguments.only:
            results[row.name] = measure(row, arguments.out.resolve() / row.name, set(arguments.ways))
            known.write_text(json.dumps(results, indent=1))
            print(json.dumps(results[row.name]), flush=True)
    ordered = [results[row.name] for row in ROWS if row.name in results]
    print(table(ordered))
    if arguments.write:
        write(ordered)


if __name__ == "__main__":
    main()
