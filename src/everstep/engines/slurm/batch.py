"""What Slurm is asked to run: one allocation for a run with its spares, and one node more for a lost one."""

import contextlib
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

import msgspec

from everstep.errors import ConfigError
from everstep.linux.files import write_whole
from everstep.model.names import MachineName, is_name

SRUN = ("srun", "--no-kill", "--kill-on-bad-exit=0", "--wait=0", "--ntasks-per-node=1")
"""One launcher on each node. The end of one, and the loss of a node, is no end of the others."""

EXIT_CODE_NAME = "exit-code"
"""In the run directory: how the run ended, whatever became of the launchers of lost nodes."""

NOTICE_S = 120
"""Before the job's time is over, all of it gets SIGTERM."""


class Submission(msgspec.Struct, frozen=True, kw_only=True):
    num_nodes: int
    num_standby: int
    everstep: tuple[str, ...]  # the command
    arguments: tuple[str, ...]  # of `everstep run`
    runs: str  # directory of runs, shared by the login node and all others
    name: str = "everstep"
    exclude: tuple[MachineName, ...] = ()
    options: tuple[str, ...] = ()  # of sbatch, as the user has given them; they win

    def __post_init__(self) -> None:
        """Raises ConfigError for what would not stay on its line of the script, or would be a list to Slurm."""
        for text in (self.name, *self.exclude):
            if not is_name(text):
                raise ConfigError(f"nothing is submitted: {text[:80]!a} is not the name of a job or a machine")
        if not self.runs.isprintable():
            raise ConfigError(f"nothing is submitted: the directory of runs is {self.runs[:80]!a}: set EVERSTEP_HOME")


def script(wanted: Submission) -> str:
    """For sbatch. The job is never requeued: a restart is everstep's, within the allocation."""
    directives = [  # a line each
        f"--job-name={wanted.name}",
        f"--nodes={wanted.num_nodes + wanted.num_standby}",
        "--ntasks-per-node=1",
        "--no-kill",
        "--no-requeue",
        f"--signal=TERM@{NOTICE_S}",
        f"--output={wanted.runs}/slurm-%j.out",
        *([f"--exclude={','.join(wanted.exclude)}"] if wanted.exclude else []),
    ]
    standby = ["--standby", str(wanted.num_standby)] if wanted.num_standby else []
    command = shlex.join([*SRUN, *wanted.everstep, "run", *standby])
    return "\n".join(
        [
            "#!/bin/sh",
            *(f"#SBATCH {shlex.quote(each)}" for each in directives),
            "export EVERSTEP_SLURM_NO_KILL=1",
            f"run={shlex.quote(wanted.runs)}/slurm-$SLURM_JOB_ID",
            f'{command} --run-dir "$run" {shlex.join(wanted.arguments)}',
            "code=$?",
            f'[ -f "$run/{EXIT_CODE_NAME}" ] && exit "$(cat "$run/{EXIT_CODE_NAME}")"',
            'exit "$code"',
            "",
        ]
    )


def note_exit_code(run_dir: Path, code: int) -> None:
    """Else the batch script knows srun's code only."""
    with contextlib.suppress(OSError):
        write_whole(run_dir / EXIT_CODE_NAME, f"{code}\n".encode(), mode=0o600)


def pilot(command: Sequence[str], token_file: str) -> str:
    """A job of one node, which joins the run."""
    return f"#!/bin/sh\nexport EVERSTEP_JOIN_TOKEN_FILE={shlex.quote(token_file)}\nexec {shlex.join(command)}\n"


def pilot_options(job: dict[str, str], *, run_dir: str, exclude: Sequence[str]) -> list[str]:
    """Options as the run's own job has them. `exclude`: nodes that were taken out."""
    options = [
        "--nodes=1",
        "--ntasks=1",
        "--no-requeue",
        f"--job-name={job.get('JobName', 'everstep')}-pilot",
        f"--output={run_dir}/pilot-%j.out",
    ]
    names = {"Partition": "partition", "Account": "account", "QOS": "qos", "TresPerNode": "gres"}
    for field, option in names.items():
        value = re.sub(r"\bgres[:/]", "", job.get(field, ""))  # the prefix of 22.05, and of 23.11
        if value and value not in ("(null)", "N/A"):
            options.append(f"--{option}={value}")
    return [*options, *([f"--exclude={','.join(dict.fromkeys(exclude))}"] if exclude else [])]
