"""The command line: torchrun's own parser, extended by the few flags of ours.

It decides nothing: `torchrun` refuses what cannot be done, `settings` puts flags, environment and file together. Called
by `launcher.run`.
"""

import argparse
from collections.abc import Sequence
from typing import Any

from everstep.errors import ConfigError
from everstep.launcher.arguments.torch_parts import part

_SINCE: dict[str, Any] = {
    "duplicate_stderr_filters": [],
    "duplicate_stdout_filters": [],
    "event_log_handler": "null",
    "local_ranks_filter": "",
    "log_line_prefix_template": "",
    "logs_specs": None,
    "numa_binding": None,
    "shutdown_timeout": None,
    "signals_to_handle": "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
    "virtual_local_rank": False,
}
"""Flags that torchrun did not always have, as if they were not given: an earlier torch is asked for nothing else."""

_NOT_GIVEN: dict[str, int] = {
    "max_restarts": 0,  # torchrun never restarts by default; here the policy decides
    "node_rank": 0,  # slots are given in order of arrival
    "master_port": 29500,  # of torch before 2.13: two jobs on a machine met there, and Slurm's endpoint was never used
}
"""Defaults of torchrun's that mean something else than the same number from the flag or its PET_* variable, which is a
text until it is parsed."""

_LOCAL_NODES = "nodes of the job on this machine, each with --nproc-per-node ranks (default 1)"


def parser() -> argparse.ArgumentParser:
    """torchrun's parser plus ours. Raises ConfigError when torch is not installed."""
    try:
        get_args_parser = part("torch.distributed.run", "get_args_parser")
    except ImportError as error:
        raise ConfigError(
            f"everstep run needs PyTorch, which this Python cannot import ({error}). "
            "Install the build for your machine: https://pytorch.org/get-started/locally/"
        ) from error
    try:
        made: argparse.ArgumentParser = get_args_parser()
    except ValueError as error:  # PET_STANDALONE=yes
        raise ConfigError(f"a PET_* variable is not what its flag takes: {error}") from error
    made.set_defaults(**{name: value for name, value in _SINCE.items() if not _has(made, name)})
    made.prog = "everstep run"
    made.description = "Launch a PyTorch training job as torchrun does, and keep it stepping."
    for action in made._actions:
        if action.dest in _NOT_GIVEN and action.default == _NOT_GIVEN[action.dest]:
            action.default = None
    ours = made.add_argument_group("everstep")
    ours.add_argument("--local-nodes", "--local_nodes", type=int, help=_LOCAL_NODES)
    ours.add_argument(
        "--engine", help="slurm: inside sbatch or salloc, start this command on all nodes of the job by srun"
    )
    ours.add_argument("--exit-codes", "--exit_codes", help="torchrun (default): 0 and 1; everstep: docs/exit-codes.md")
    ours.add_argument("--standby", type=int, help="extra nodes that wait to take over a lost one")
    ours.add_argument("--policy", help="preset: conservative, default, aggressive")
    ours.add_argument("--mode", help="observe (explain only), advise (propose and wait), act")
    ours.add_argument("--run-dir", "--run_dir", help="where the run's journal and logs go")
    ours.add_argument("--ui-port", "--ui_port", type=int, help="port of the status page on 127.0.0.1; 0: any free one")
    ours.add_argument(
        "--network",
        help="between nodes: loopback (default); namespaces: each node has its own, which can be cut (root); auto",
    )
    ours.add_argument("--racks", help="racks of the nodes, in turn, as a,a,b,b; default: what EVERSTEP_RACK says")
    ours.add_argument(
        "--leftovers", help="what ranks that ended well left running: leave (default, as torchrun), wait (60 s), kill"
    )
    ours.add_argument("--tls", help="auto: encrypt what listens beyond loopback (default); always: loopback too")
    ours.add_argument("--config", help="TOML file with defaults for these flags, a [policy] and a [checkpoint] table")
    ours.add_argument("--checkpoint-dir", "--checkpoint_dir", help="directory or URL of checkpoints; resumes from it")
    ours.add_argument("--checkpoint-every", "--checkpoint_every", help="time between two, as 30s, 10m (default)")
    ours.add_argument("--checkpoint-keep", "--checkpoint_keep", help="how many of the newest stay (default 3)")
    ours.add_argument("--init-from", "--init_from", help="checkpoint that a first start takes its state from")
    _abbreviate_only(made, except_for=ours)
    return made


def _has(made: argparse.ArgumentParser, name: str) -> bool:
    return any(action.dest == name for action in made._actions)


def _abbreviate_only(made: argparse.ArgumentParser, except_for: argparse._ArgumentGroup) -> None:
    """An abbreviation means what it means to torchrun: `--stand` is --standalone, however our flags are called."""
    found_by = made._get_option_tuples
    ours = {id(action) for action in except_for._group_actions}

    def only_torchruns(option: str) -> list[Any]:
        return [found for found in found_by(option) if id(found[0]) not in ours]

    made._get_option_tuples = only_torchruns  # type: ignore[method-assign, assignment]  # argparse has no other way


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Exits with code 2 on a flag that neither torchrun nor everstep knows, as argparse does."""
    return parser().parse_args(list(argv))


def given_in(argv: Sequence[str]) -> dict[str, Any]:
    """The flags that a command line has, by name: no defaults."""
    made = parser()
    made._defaults.clear()
    for action in made._actions:
        action.default = argparse.SUPPRESS
    given = vars(made.parse_args(list(argv)))
    return {name: value for name, value in given.items() if not name.startswith("training_script")}
