"""Several hosts: how many, where they meet and which one this is, from torchrun's flags or from Slurm's variables.

Pure but for the torch source that parses an endpoint. Called by `settings` and by `launcher.run`.
"""

import argparse
import re
from collections.abc import Mapping, Sequence

import msgspec

from everstep.errors import ConfigError
from everstep.launcher.arguments.torch_parts import part

RENDEZVOUS = "torch.distributed.elastic.rendezvous.utils"
DEFAULT_PORT = 29400
"""torchrun's, of the c10d rendezvous."""

MASTER_ADDR, MASTER_PORT = "127.0.0.1", 29500
"""torchrun's, of the static rendezvous."""

JOIN_LIMIT_S = 600.0
"""How long the run waits for its hosts: torchrun's join_timeout."""

REACH_LIMIT_S = 60.0
"""How long a host waits for the one that owns the endpoint to start listening: torchrun's read_timeout."""

NO_KILL = "EVERSTEP_SLURM_NO_KILL"
"""Set to 1 by `everstep submit`: the job's nodes may be set down without ending the job."""

_FIRST_PORT, _NUM_PORTS = 20_000, 10_000  # below the ports that the kernel gives to connections


class SlurmStep(msgspec.Struct, frozen=True, kw_only=True):
    """The step of a Slurm job that this host's launcher is a task of."""

    job: str
    node: str  # this host's name in Slurm
    nodes: str  # of the step, in Slurm's short form
    survives_nodes: bool  # the job was started with --no-kill: the loss of a node does not end it


class Hosts(msgspec.Struct, frozen=True, kw_only=True):
    """One host's view of a run over several."""

    num: int  # the most, where it may change
    host: str  # of the endpoint: the host that owns this address runs the controller
    port: int
    others: tuple[tuple[str, int], ...] = ()  # where a successor may have the controller, if it is not there
    node_rank: int | None = None  # None: in order of arrival
    join_limit_s: float = JOIN_LIMIT_S
    reach_limit_s: float = REACH_LIMIT_S
    last_call_s: float | None = None  # torchrun's last_call_timeout; None: not said
    least: int = 0  # MIN of --nnodes MIN:MAX, where the number of nodes may change; 0: it does not
    said_by: str = "--rdzv-endpoint"
    slurm: SlurmStep | None = None  # None: not by Slurm's variables

    @property
    def endpoint(self) -> str:
        return shown(self.host, self.port)

    def at(self, place: tuple[str, int]) -> "Hosts":
        """Return the same hosts, with this place as the only one at which the run is looked for."""
        return msgspec.structs.replace(self, host=place[0], port=place[1], others=())


def shown(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def of(
    given: argparse.Namespace, environ: Mapping[str, str], least: int, num_standby: int = 0, most: int = 0
) -> Hosts | None:
    """None: one machine. `least`, `most`: MIN and MAX of --nnodes. Raises ConfigError."""
    if given.standalone:
        return None
    slurm = None if is_said(given) else of_slurm(environ, num_standby)
    if slurm is not None:
        return slurm
    if least == 1:
        return None
    (host, port), *others = places = _meeting_point(given)
    said_by = "--rdzv-endpoint" if given.rdzv_endpoint else "--master-addr"
    if not host:
        return None
    check_ports(places, said_by)
    if given.node_rank is not None and not 0 <= given.node_rank < least:
        raise ConfigError(f"--node-rank {given.node_rank}: must be 0 to {least - 1} with --nnodes {given.nnodes}")
    conf = _conf(given.rdzv_conf)
    is_elastic = most > least
    return Hosts(
        num=max(least, most),
        least=least if is_elastic else 0,
        host=host,
        port=port,
        others=tuple(others),
        node_rank=None if is_elastic else given.node_rank,  # torchrun ignores it as well
        last_call_s=_seconds(conf, "last_call_timeout", 0.0) if "last_call_timeout" in conf else None,
        join_limit_s=_seconds(conf, "join_timeout", JOIN_LIMIT_S),
        reach_limit_s=_seconds(conf, "read_timeout", REACH_LIMIT_S),
        said_by=said_by,
    )


def check_ports(places: Sequence[tuple[str, int]], said_by: str) -> None:
    """Raises ConfigError."""
    for _, each in places:
        if not 0 < each < 65536:
            raise ConfigError(f"{said_by}: port {each}: give all hosts the same port, between 1 and 65535")


def is_said(given: argparse.Namespace) -> bool:
    """Whether the command line says itself what the job's shape is."""
    shape = (given.rdzv_endpoint, given.node_rank, given.local_nodes)
    is_shaped = any(value not in (None, "") for value in shape)
    return given.nnodes not in ("1", "1:1") or is_shaped or _has_master(given)


def parse_endpoints(text: str) -> list[tuple[str, int]]:
    """The endpoint, and after commas where else the run may be: with the endpoint's port where none is given. Raises
    ConfigError."""
    first, *others = text.split(",")
    if not first.strip():  # torch's parser would read it as this host's loopback
        raise ConfigError(f"{text!r} begins with no host: give HOST:PORT of the host that begins the run")
    endpoint = parse_endpoint(first)
    return [endpoint, *(parse_endpoint(each, endpoint[1]) for each in others if each)]


def first_endpoint(text: str) -> str:
    return text.partition(",")[0]


def parse_endpoint(text: str, default_port: int = DEFAULT_PORT) -> tuple[str, int]:
    """HOST:PORT, HOST, or [ADDRESS]:PORT. Raises ConfigError."""
    try:
        host, port = part(RENDEZVOUS, "parse_rendezvous_endpoint")(text, default_port)
    except ValueError as error:
        raise ConfigError(f"--rdzv-endpoint {text}: {error}") from error
    return str(host).strip("[]"), int(port)


def of_slurm(environ: Mapping[str, str], num_standby: int = 0) -> Hosts | None:
    """The hosts of a step with one task on each of several nodes (`srun --ntasks-per-node 1 everstep run ...`).

    The first node of the step owns the endpoint; its port follows from the job, so that two jobs on a node do not meet.
    The last `num_standby` nodes wait. Raises ConfigError when none would be left."""
    num, tasks = _number(environ, "SLURM_STEP_NUM_NODES"), _number(environ, "SLURM_STEP_NUM_TASKS")
    rank, job = _number(environ, "SLURM_NODEID"), _number(environ, "SLURM_JOB_ID")
    step = _number(environ, "SLURM_STEP_ID")
    nodes = environ.get("SLURM_STEP_NODELIST", "")
    first = first_host(nodes)
    if num is None or num < 2 or tasks != num or rank is None or job is None or step is None or not first:
        return None
    if num_standby >= num:
        raise ConfigError(
            f"--standby {num_standby}: this Slurm step has {num} nodes, and none would be left to train: ask Slurm for "
            "more, or give a smaller number"
        )
    return Hosts(
        num=num - num_standby,
        host=first,
        port=_FIRST_PORT + (job * 31 + step) % _NUM_PORTS,
        node_rank=rank if rank < num - num_standby else None,
        said_by="Slurm's SLURM_STEP_NODELIST",
        slurm=SlurmStep(
            job=str(job),
            node=environ.get("SLURMD_NODENAME", ""),
            nodes=nodes,
            survives_nodes=environ.get(NO_KILL) == "1",
        ),
    )


def first_host(nodelist: str) -> str:
    """The first host of Slurm's short form: "gpu007" for "gpu[007-031,40],login1". Empty when there is none."""
    name, depth = "", 0
    for character in nodelist.strip():
        if character == "," and not depth:
            break
        depth += (character == "[") - (character == "]")
        name += character
    return re.sub(r"\[([^\],-]*)[^\]]*\]", r"\1", name)


def _meeting_point(given: argparse.Namespace) -> list[tuple[str, int]]:
    if given.rdzv_endpoint:
        return parse_endpoints(given.rdzv_endpoint)
    if given.rdzv_backend == "static" and _has_master(given):
        port = MASTER_PORT if given.master_port is None else int(given.master_port)
        return [(given.master_addr or MASTER_ADDR, port)]
    return [("", 0)]


def _has_master(given: argparse.Namespace) -> bool:
    return given.master_port is not None or given.master_addr not in (None, "", MASTER_ADDR)


def _conf(text: str) -> dict[str, str]:
    """The pairs of --rdzv-conf, which was checked before."""
    pairs = (pair.partition("=") for pair in (text or "").split(",") if "=" in pair)
    return {name.strip(): value.strip() for name, _, value in pairs}


def _seconds(conf: Mapping[str, str], name: str, default: float) -> float:
    """`timeout`, as the static rendezvous has it, stands for both."""
    text = conf.get(name, conf.get("timeout", ""))
    if not text:
        return default
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise ConfigError(f"--rdzv-conf {name}={text}: must be a number of seconds above 0")
    return seconds


def _number(environ: Mapping[str, str], name: str) -> int | None:
    text = environ.get(name, "")
    return int(text) if text.isdecimal() else None
