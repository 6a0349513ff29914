"""`everstep run --engine slurm` in a batch script or under salloc: the same command, on all nodes of the job."""

import os
import shutil
import sys
from collections.abc import Mapping, Sequence

from everstep.engines.slurm.batch import SRUN
from everstep.errors import ConfigError

ENGINES = ("slurm",)
_IN_A_STEP = "SLURM_STEP_ID"


def srun_command(engine: str, argv: Sequence[str], environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the command that this process becomes; empty if it is one of the launchers already. Raises ConfigError."""
    if engine not in ENGINES:
        raise ConfigError(f"--engine {engine!r}: must be one of {', '.join(ENGINES)}")
    if environ.get(_IN_A_STEP, "").isdecimal():
        return ()
    if not environ.get("SLURM_JOB_ID"):
        raise ConfigError("--engine slurm: this is not inside a Slurm job. everstep submit asks Slurm for one")
    if shutil.which(SRUN[0]) is None:
        raise ConfigError(f"--engine slurm: {SRUN[0]} is not on PATH")
    num_nodes = environ.get("SLURM_JOB_NUM_NODES", "")
    return (*SRUN, f"--nodes={num_nodes}", sys.executable, "-P", "-m", "everstep.cli.main", "run", *argv)


def become(command: Sequence[str]) -> None:
    os.execvp(command[0], list(command))
