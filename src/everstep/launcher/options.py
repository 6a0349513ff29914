"""What the command line asks for: torchrun's own parser, extended by the few flags of ours.

Answers: which torchrun flags were given, and which of them have no meaning here. It decides nothing; `settings`
puts flags, environment and file together. Called by `launcher.run`.
"""

import argparse
from collections.abc import Sequence

from everstep.errors import ConfigError

OUR_FLAGS = (
    "--standby",
    "--policy",
    "--mode",
    "--run-dir",
    "--ui-port",
    "--network",
    "--racks",
    "--tls",
    "--leftovers",
    "--config",
    "--checkpoint-dir",
    "--checkpoint-every",
    "--checkpoint-keep",
    "--init-from",
)

# Accepted because scripts pass them, but there is nothing here they could change. `--rdzv-*` name a rendezvous
# that everstep does not use; the rest tune torchrun's own agent.
_WITHOUT_EFFECT = (
    "rdzv_backend",
    "rdzv_endpoint",
    "rdzv_conf",
    "monitor_interval",
    "start_method",
    "event_log_handler",
    "local_addr",
    "logs_specs",
    "numa_binding",
    "virtual_local_rank",
)
_NO_EFFECT_IF = {"rdzv_backend": ("static", "c10d"), "start_method": ("spawn",)}  # said nothing different
_LOCAL_HOSTS = ("", "localhost", "127.0.0.1", "::1", "[::1]", "0.0.0.0")


def parser() -> argparse.ArgumentParser:
    """torchrun's parser plus ours. Raises ConfigError when torch is not installed."""
    try:
        from torch.distributed.run import get_args_parser
    except ImportError as error:
        raise ConfigError(
            f"everstep run needs PyTorch, which this Python cannot import ({error}). "
            "Install the build for your machine: https://pytorch.org/get-started/locally/"
        ) from error
    made: argparse.ArgumentParser = get_args_parser()
    made.prog = "everstep run"
    made.description = "Launch a PyTorch training job as torchrun does, and keep it stepping."
    for action in made._actions:
        # torchrun never restarts unless told to; here the policy decides unless the flag (or PET_MAX_RESTARTS)
        # is given.
        if action.dest == "max_restarts" and action.default == 0:
            action.default = None
    ours = made.add_argument_group("everstep")
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
    ours.add_argument("--checkpoint-dir", "--checkpoint_dir", help="folder or URL for checkpoints; resumes from there")
    ours.add_argument("--checkpoint-every", "--checkpoint_every", help="time between two, as 30s, 10m (default)")
    ours.add_argument("--checkpoint-keep", "--checkpoint_keep", help="how many of the newest stay (default 3)")
    ours.add_argument("--init-from", "--init_from", help="checkpoint that a first start takes its state from")
    return made


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Exits with code 2 on a flag that neither torchrun nor everstep knows, as argparse does."""
    return parser().parse_args(list(argv))


def without_effect(given: argparse.Namespace) -> list[str]:
    """The torchrun flags that were given and change nothing here, as they are typed."""
    defaults = _defaults()
    found = []
    for name in _WITHOUT_EFFECT:
        value = getattr(given, name, None)
        if value != defaults.get(name) and value not in _NO_EFFECT_IF.get(name, ()):
            found.append("--" + name.replace("_", "-"))
    return found


def refuse_other_machines(given: argparse.Namespace) -> None:
    """Raises ConfigError for what would need agents on more than this machine."""
    if given.node_rank:
        raise ConfigError(
            f"--node-rank {given.node_rank}: several machines are not supported yet. With --nnodes N and no "
            "endpoint everstep makes N nodes on this machine"
        )
    hosts = {"--rdzv-endpoint": _host(given.rdzv_endpoint), "--master-addr": given.master_addr or ""}
    for flag, host in hosts.items():
        if host not in _LOCAL_HOSTS and not _is_this_machine(host):
            raise ConfigError(
                f"{flag} names another machine ({host}): several machines are not supported yet; leave it out or "
                "use localhost"
            )


def _host(endpoint: str | None) -> str:
    endpoint = endpoint or ""
    if endpoint.startswith("["):
        return endpoint.partition("]")[0] + "]"
    return endpoint.partition(":")[0]


def _is_this_machine(host: str) -> bool:
    import socket

    try:
        return host == socket.gethostname() or socket.gethostbyname(host).startswith("127.")
    except OSError:
        return False


def _defaults() -> dict[str, object]:
    """torchrun's defaults as they are without PET_* variables, which count as given."""
    import os

    kept = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith("PET_")}
    try:
        made = parser()
    finally:
        os.environ.update(kept)
    return {action.dest: action.default for action in made._actions}
