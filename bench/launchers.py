"""Do processes find the same under `everstep run LAUNCHER ...` as under LAUNCHER itself? Each line runs twice.

    python bench/launchers.py [--only accelerate,deepspeed,...] [--json FILE]

A line whose library is not installed is left out. Exit code 0: no difference but those that are meant; 1: others; 2: a
launcher failed. docs/launchers.md has the last table.
"""

import argparse
import json
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from measuring.launched import adopt_orphans, end_on_sigterm, launched

FACTS = Path(__file__).parent / "programs/launcher_facts.py"
LIMIT_S = 300.0
MEANT = re.compile(r"env\.(EVERSTEP_\w+|TORCHELASTIC_(ERROR_FILE|RUN_ID)|TORCH_FR_BUFFER_SIZE|FACTS|_|PYTHONPATH)")
"""Differences from torchrun that docs/same-program.md names, and what this program itself sets."""

AGENT_STORE = "env.TORCHELASTIC_USE_AGENT_STORE"
"""DeepSpeed's rank 0 opens the store itself; with everstep it is there already."""

Facts = dict[str, dict[str, Any]]
"""By rank."""

FSDP = {
    "compute_environment": "LOCAL_MACHINE",
    "distributed_type": "FSDP",
    "mixed_precision": "bf16",
    "num_processes": 2,
    "num_machines": 1,
    "machine_rank": 0,
    "main_process_port": 29571,
    "fsdp_config": {"fsdp_version": 2, "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP", "fsdp_offload_params": True},
}
ZERO = {
    "compute_environment": "LOCAL_MACHINE",
    "distributed_type": "DEEPSPEED",
    "mixed_precision": "bf16",
    "num_processes": 2,
    "num_machines": 1,
    "machine_rank": 0,
    "main_process_port": 29572,
    "deepspeed_config": {"zero_stage": 2, "gradient_accumulation_steps": 4, "gradient_clipping": 1.0},
}


PORT = "--rdzv-backend static --master-port 29574"
"""torchrun draws one where none is given."""


class Line(NamedTuple):
    name: str
    words: str
    library: str
    ranks: int
    environ: Mapping[str, str] = {}

    def command(self) -> list[str]:
        words = shlex.split(self.words.replace("PROGRAM", shlex.quote(str(FACTS))))
        return [sys.executable, *words] if words[0] == "-m" else words


LINES = (
    Line("torchrun", f"-m torch.distributed.run {PORT} --nproc-per-node 2 PROGRAM --at ${{local_rank}}", "torch", 2),
    Line("launch", f"-m torch.distributed.launch {PORT} --nproc-per-node 2 PROGRAM --lr 3", "torch", 2),
    Line("launch-env", f"-m torch.distributed.launch {PORT} --use-env --nproc-per-node 2 PROGRAM", "torch", 2),
    Line(
        "accelerate",
        "-m accelerate.commands.launch --multi_gpu --num_processes 2 --num_machines 1 --mixed_precision bf16 "
        "--dynamo_backend no --main_process_port 29570 PROGRAM --with accelerate",
        "accelerate",
        2,
        {"ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "4", "ACCELERATE_USE_CPU": "true"},
    ),
    Line("accelerate-one", "-m accelerate.commands.launch --cpu --num_processes 1 --num_machines 1 "
         "--mixed_precision bf16 --dynamo_backend no PROGRAM --with accelerate '$HOME'", "accelerate", 1),
    Line("accelerate-fsdp", "-m accelerate.commands.launch --config_file fsdp.json PROGRAM --with accelerate",
         "accelerate", 2, {"ACCELERATE_USE_CPU": "true"}),
    Line("accelerate-deepspeed", "-m accelerate.commands.launch --config_file zero.json PROGRAM --with accelerate",
         "deepspeed", 2),
    Line("deepspeed", "-m deepspeed.launcher.runner --num_gpus 2 PROGRAM --with deepspeed '$HOME'", "deepspeed", 2),
    Line("deepspeed-bare", "-m deepspeed.launcher.runner --num_gpus 2 --no_local_rank --master_port 29573 PROGRAM",
         "deepspeed", 2),
)  # fmt: skip


class FailedError(Exception):
    """A launcher that did not bring the program to its end."""


def main(argv: Sequence[str] | None = None) -> int:
    args = _arguments(argv)
    adopt_orphans()
    end_on_sigterm()
    rows, has_others = [], False
    for line in LINES:
        if line.name not in args.only or find_spec(line.library) is None:
            continue
        try:
            theirs, ours = take(line)
        except FailedError as failed:
            print(failed, file=sys.stderr)
            return 2
        meant, others = differences(theirs, ours)
        has_others = has_others or bool(others)
        rows.append({"line": line.name, "ranks": len(theirs), "facts": sum(map(len, theirs.values())),
                     "meant": sorted(meant), "others": others})  # fmt: skip
        print(row(rows[-1]), flush=True)
    if args.json is not None:
        args.json.write_text(json.dumps(rows, indent=1))
    return int(has_others)


def take(line: Line) -> tuple[Facts, Facts]:
    """Under the launcher itself, and under everstep. Raises FailedError."""
    with tempfile.TemporaryDirectory(prefix="launchers-") as kept:
        folder = Path(kept)
        (folder / "fsdp.json").write_text(json.dumps(FSDP))
        (folder / "zero.json").write_text(json.dumps(ZERO))
        command = line.command()
        everstep = [sys.executable, "-P", "-m", "everstep.cli.main", "run", "python", *command[1:]]
        return _facts(line, command, folder / "theirs"), _facts(line, everstep, folder / "ours")


def _facts(line: Line, command: Sequence[str], folder: Path) -> Facts:
    folder.mkdir()
    path = f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}"
    own = {"FACTS": str(folder), "EVERSTEP_HOME": str(folder / "home"), "HF_HOME": str(folder.parent), "PATH": path}
    env = os.environ | dict(line.environ) | own
    output = folder.parent / f"{folder.name}.log"
    with launched(command, env=env, output=output, cwd=folder.parent) as running:
        code = running.wait(LIMIT_S)
    ranks = {path.name: path for path in folder.iterdir() if path.is_file()}
    if code != 0 or len(ranks) != line.ranks:
        how = f"not over after {LIMIT_S:.0f} s" if code is None else f"ended with {code}"
        raise FailedError(f"{line.name}: {shlex.join(command)}: {how}\n{running.last_output()}")
    return {rank: json.loads(path.read_text()) for rank, path in ranks.items()}


def differences(theirs: Facts, ours: Facts) -> tuple[set[str], list[str]]:
    """Facts that differ as is meant, and all others with both values."""
    meant, others = set(), []
    for rank in sorted(theirs.keys() | ours.keys()):
        left, right = theirs.get(rank, {}), ours.get(rank, {})
        for name in sorted(left.keys() | right.keys()):
            a, b = left.get(name), right.get(name)
            if a == b or MEANT.fullmatch(name):
                continue
            if name == AGENT_STORE and a is None:
                meant.add(name)
            else:
                others.append(f"rank {rank} {name}: {a!r}, {b!r}")
    return meant, others


def row(found: Mapping[str, Any]) -> str:
    same = "all the same" if not found["others"] else "; ".join(found["others"])
    return f"| {found['line']} | {found['ranks']} | {found['facts']} | {same} | {', '.join(found['meant'])} |"


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [line.name for line in LINES]
    parser.add_argument("--only", type=lambda text: text.split(","), default=names, help=", ".join(names))
    parser.add_argument("--json", type=Path)
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
