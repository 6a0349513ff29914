"""torchrun's flags that are refused here, wholly or with some values, each with the reason; nothing is accepted and
ignored. What would be wrong under torchrun is refused with torchrun's own sentence.

docs/torchrun.md has every flag; `launcher.arguments.torchrun_table` makes it. Called by `launcher.run` before anything
starts.
"""

import argparse
import socket
from collections.abc import Mapping

from everstep.errors import ConfigError
from everstep.launcher.arguments import hosts
from everstep.launcher.arguments.hosts import RENDEZVOUS
from everstep.launcher.arguments.torch_parts import part

_LOCAL_HOSTS = ("", "localhost", "::1", "[::1]", "0.0.0.0")
_BACKENDS = ("c10d", "static")
_OTHER_BACKENDS = ("etcd", "etcd-v2")
_SEVERAL = "docs/hosts.md says how a job runs on several hosts"
SCHEDULER_SIZES = ("SLURM_JOB_NUM_NODES", "SLURM_NNODES")


def check(given: argparse.Namespace, environ: Mapping[str, str]) -> None:
    """Raises ConfigError for the first flag that means something that everstep would not do."""
    for refuse in (
        _nodes,
        _node_rank,
        _addresses,
        _rendezvous,
        _restarts,
        _logs_specs,
        _event_log_handler,
        _numa_binding,
        _virtual_local_rank,
    ):
        refuse(given, environ)


def machines(nnodes: str) -> tuple[int, int]:
    """torchrun's MIN and MAX. Raises ConfigError."""
    sizes = nnodes.split(":")
    try:
        least, most = int(sizes[0]), int(sizes[-1])
    except ValueError:
        raise ConfigError(f"--nnodes {nnodes!r}: must be a number, or MIN:MAX") from None
    if len(sizes) > 2:
        raise ConfigError(f'nnodes={nnodes} is not in "MIN:MAX" format')
    if not 0 < least <= most:
        raise ConfigError(
            f"--nnodes {nnodes!r}: min_nodes must be > 0 and <= max_nodes, got min_nodes={least}, max_nodes={most}"
        )
    return least, most


def ranks_per_node(text: str) -> int:
    """The number in --nproc-per-node. Raises ConfigError."""
    try:
        number = int(text)
    except ValueError:
        number = _nproc_of_devices(text)
    if number < 1:
        raise ConfigError(f"--nproc-per-node {text}: must be at least 1")
    return number


def _nproc_of_devices(text: str) -> int:
    from torch.distributed.run import determine_local_world_size

    try:
        return int(determine_local_world_size(text))
    except (ValueError, RuntimeError) as error:
        raise ConfigError(
            f"--nproc-per-node {text!r}: must be a number, or one of auto, cpu, gpu, xpu ({error})"
        ) from error


def _nodes(given: argparse.Namespace, environ: Mapping[str, str]) -> None:
    """Under torchrun N waits for N machines. Making all of them here would train with other batches than it looks."""
    least, _ = machines(given.nnodes)
    if least == 1:
        return
    if hosts.of(given, environ, least) is not None:
        if (given.local_nodes or 1) > 1:
            raise ConfigError(
                f"--nnodes {given.nnodes} with --local-nodes: each host is one node; leave one of them out"
            )
        return
    signs = [f"{name}={environ[name]}" for name in SCHEDULER_SIZES if environ.get(name, "1") != "1"]
    seen = f" ({', '.join(signs)})" if signs else ""
    why = "--standalone means one" if given.standalone else "where they meet is not said: give all of them the same "
    why += "" if given.standalone else "--rdzv-endpoint HOST:PORT, of one of them"
    raise ConfigError(
        f"--nnodes {given.nnodes}{seen}: it would wait for {least - 1} more machine{'s' if least > 2 else ''}, and "
        f"{why}. Nothing was started. For {least} nodes on this machine: --local-nodes {least}"
    )


def _node_rank(given: argparse.Namespace, environ: Mapping[str, str]) -> None:
    if given.node_rank and machines(given.nnodes)[0] == 1:
        raise ConfigError(f"--node-rank {given.node_rank}: --nnodes {given.nnodes} is one host. Nothing was started")


def _addresses(given: argparse.Namespace, environ: Mapping[str, str]) -> None:
    if given.standalone:
        return  # torchrun ignores the endpoint then
    parse_rendezvous_endpoint = part(RENDEZVOUS, "parse_rendezvous_endpoint")
    try:
        host, port = parse_rendezvous_endpoint(hosts.first_endpoint(given.rdzv_endpoint), -1)
    except ValueError as error:
        raise ConfigError(f"--rdzv-endpoint {given.rdzv_endpoint}: {error}") from error
    if hosts.of(given, environ, machines(given.nnodes)[0]) is not None:
        return
    if given.rdzv_backend == "static" and given.rdzv_endpoint and port == -1:
        raise ConfigError(f"port is missing in endpoint: {given.rdzv_endpoint}. Try to specify --master-port")
    for flag, name in {"--rdzv-endpoint": host, "--master-addr": given.master_addr or ""}.items():
        if not is_this_machine(name):
            raise ConfigError(
                f"{flag} names another machine ({name}), and --nnodes {given.nnodes} is one: leave it out or use "
                f"localhost. Nothing was started. {_SEVERAL}"
            )


def _rendezvous(given: argparse.Namespace, environ: Mapping[str, str]) -> None:
    try:
        part(RENDEZVOUS, "_parse_rendezvous_config")(given.rdzv_conf)
    except ValueError as error:
        raise ConfigError(f"--rdzv-conf {given.rdzv_conf!r}: {error}") from error
    backend = given.rdzv_backend
    if given.standalone or backend in _BACKENDS:
        return
    if backend in _OTHER_BACKENDS or backend in _entry_points("torchrun.handlers"):
        raise ConfigError(
            f"--rdzv-backend {backend}: everstep has a rendezvous of its own and needs no server; leave it out. "
            f"{_SEVERAL}"
        )
    raise ConfigError(
        f"The rendezvous backend '{backend}' is not registered. Did you forget to call `register`? (--rdzv-backend)"
    )


def _restarts(given: argparse.Namespace, environ: Mapping[str, str]) -> None:
    if given.max_restarts is not None and given.max_restarts < 0:
        raise ConfigError(f"--max-restarts {given.max_restarts}: max_restarts must be >= 0")
    if given.shutdown_timeout is not None and given.shutdown_timeout < 0:
        raise ConfigError(f"--shutdown-timeout: shutdown_timeout must be non-negative, got {given.shutdown_timeout}")


def _logs_specs(given: argparse.Namespace, environ: Mapping[str, str]) -> None:
    if given.logs_specs is None:
        return
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
    from torch.distributed.run import _get_logs_specs_class

    try:
        found = _get_logs_specs_class(given.logs_specs)
    except ValueError as error:
        raise ConfigError(f"--logs-specs: {error}") from error
    if found is not DefaultLogsSpecs:
        raise ConfigError(
            f"--logs-specs {given.logs_specs}: everstep writes the ranks' files itself, so {found.__name__} would "
            "never be asked. --log-dir, --redirects and --tee work; leave it out"
        )


def _event_log_handler(given: argparse.Namespace, environ: Mapping[str, str]) -> None:
    name = given.event_log_handler
    if name == "null":
        return
    from torch.distributed.elastic.events.handlers import _log_handlers

    if name not in _log_handlers:
        raise ConfigError(f"--event-log-handler {name!r}: no such handler; there are: {', '.join(_log_handlers)}")
    raise ConfigError(
        f"--event-log-handler {name}: torch's agent, whose events these are, does not run here; everstep's are in the "
        "journal (docs/journal.md). Leave it out"
    )


def _numa_binding(given: argparse.Namespace, environ: Mapping[str, str]) -> None:
    if given.numa_binding is not None:
        raise ConfigError(
            f"--numa-binding {given.numa_binding}: not supported; without it ranks run on every core, as torchrun's "
            "do. `numactl` with --no-python binds them"
        )


def _virtual_local_rank(given: argparse.Namespace, environ: Mapping[str, str]) -> None:
    """That every rank has a GPU in CUDA_VISIBLE_DEVICES is checked when the number of ranks is known."""
    if given.virtual_local_rank and "CUDA_VISIBLE_DEVICES" in environ:
        visible, local_rank = environ["CUDA_VISIBLE_DEVICES"], ranks_per_node(given.nproc_per_node) - 1
        if local_rank >= len(visible.split(",")):
            raise ConfigError(f"local_rank {local_rank} exceeds available GPUs in CUDA_VISIBLE_DEVICES={visible}")


def is_this_machine(name: str) -> bool:
    if name in _LOCAL_HOSTS or name.startswith("127."):
        return True
    try:
        found = {str(info[4][0]) for info in socket.getaddrinfo(name.strip("[]"), None)}
    except OSError:
        return name == socket.gethostname()
    return any(_can_listen(address) for address in found)


def _can_listen(address: str) -> bool:
    """Whether it is one of this machine's own addresses."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as sock:
            sock.bind((address, 0))
    except OSError:
        return False
    return True


def _entry_points(group: str) -> set[str]:
    from importlib.metadata import entry_points

    return {each.name for each in entry_points(group=group)}
