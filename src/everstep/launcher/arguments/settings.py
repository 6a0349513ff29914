"""Flags, EVERSTEP_* variables, the TOML file and the preset become one frozen value. It only reads the file.

Precedence: flag > environment > file > preset. An unknown key in the file is an error that lists the allowed ones:
a misspelt setting that is silently ignored would be found out days later.
"""

import argparse
import re
import tomllib
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from everstep.core.restore.racks import why_no_rack
from everstep.core.state.policy import Policy, preset
from everstep.errors import ConfigError
from everstep.journal.runs import LATEST
from everstep.launcher import leftovers
from everstep.launcher.arguments import hosts as several
from everstep.launcher.arguments import torchrun
from everstep.launcher.arguments.checkpoints import Wanted, resolve_checkpoints, useless
from everstep.launcher.arguments.torch_parts import part
from everstep.model.spec import MAX_RANKS, Launch, Mode
from everstep.notices.settings import receivers_of

_KINDS = {bool: "true or false", int: "a whole number", float: "a number"}
_KEYS = ("local_nodes", "standby", "mode", "run_dir", "ui_port", "network", "racks", "tls", "leftovers", "policy")
_TABLES = ("policy", "checkpoint", "notices")

MAX_ID_CHARS = 90
"""Limit for the name of a run's directory; a number may follow."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the launcher was asked to do."""

    program: str
    args: tuple[str, ...]
    launch: Launch
    num_slots: int
    min_slots: int = 0  # the number of nodes may change, down to this; 0: it does not
    nproc_per_node: int
    num_standby: int = 0
    mode: Mode = Mode.ACT
    policy: Policy
    role: str = "default"
    run_id: str = ""  # empty: make one
    run_dir: str = ""  # empty: below EVERSTEP_HOME
    ui_port: int = 0  # 0: any free one
    hosts: several.Hosts | None = None  # None: one machine
    network: str = "loopback"  # between nodes: or "namespaces", or "auto": those where it is allowed
    racks: tuple[str, ...] = ()  # of the nodes in turn; none: what EVERSTEP_RACK says
    tls: str = "auto"  # what listens beyond loopback is encrypted; "always": everything
    leftovers: str = leftovers.LEAVE  # what becomes of processes that ranks which ended well left running
    checkpoints: Wanted = Wanted()
    log_dir: str = ""
    filters: dict[int, tuple[str, ...]] = {}  # by stream, 1 and 2: --duplicate-stdout-filters, -stderr-
    redirects: str = "0"
    tee: str = "0"
    shown_local_ranks: tuple[int, ...] | None = None  # None: all
    prefix: str = ""  # of shown lines, torchrun's template; empty: its variable, or its default
    store_host: str = "localhost"  # MASTER_ADDR, as torchrun has it
    store_port: int = 0  # MASTER_PORT that was asked for; 0: any free one
    rdzv_id: str = ""  # TORCHELASTIC_RUN_ID
    may_share_id: bool = True  # with a run of the same --rdzv-id: this one gets a directory of its own
    virtual_local_rank: bool = False
    signals: tuple[str, ...] = ()
    unset: tuple[str, ...] = ()  # torchrun's variables that ranks do not get: another launcher's do not have them
    notices: str = ""  # the file that configures who is notified of incidents; empty: no notices
    notes: tuple[str, ...] = ()  # logged once at the start


def resolve(given: argparse.Namespace, environ: Mapping[str, str]) -> Settings:
    """Raises ConfigError with the key, the value and what is allowed."""
    torchrun.check(given, environ)
    path = given.config or environ.get("EVERSTEP_CONFIG") or ""
    file = _read_file(Path(path)) if path else {}
    chosen = _choose(given, environ, file)
    told = receivers_of(file.get("notices", []), environ, path)
    least, most = torchrun.machines(given.nnodes)
    num_standby = _whole("standby", chosen["standby"], least=0)
    hosts = several.of(given, environ, least, num_standby, most)
    num_slots = hosts.num if hosts is not None else _whole("local-nodes", chosen["local_nodes"], least=1)
    nproc = torchrun.ranks_per_node(given.nproc_per_node)
    if max(num_slots, num_standby) * nproc > MAX_RANKS:
        raise ConfigError(f"{num_slots} nodes of {nproc} ranks: a job has at most {MAX_RANKS} ranks")
    wanted = resolve_checkpoints(vars(given), environ, file.get("checkpoint", {}))
    if hosts is not None:
        _check_network(chosen["network"])
    joining = _about_size(given, least, most)
    said = tuple(each for each in (joining, useless(vars(given), wanted)) if each)
    return Settings(
        program=given.training_script,
        args=tuple(given.training_script_args),
        launch=_launch(given),
        num_slots=num_slots,
        min_slots=hosts.least if hosts is not None else 0,
        nproc_per_node=nproc,
        num_standby=num_standby,
        mode=_mode(chosen["mode"]),
        policy=_policy(chosen["policy"], given, environ, hosts),
        hosts=hosts,
        role=given.role,
        run_id=_run_id(given),
        rdzv_id=_rdzv_id(given),
        may_share_id=most == 1 or hosts is not None,
        run_dir=str(chosen["run_dir"] or ""),
        ui_port=_port("ui-port", chosen["ui_port"]),
        network=_network(chosen["network"]),
        racks=_racks(chosen["racks"]),
        tls=_tls(chosen["tls"]),
        leftovers=_leftovers(chosen["leftovers"]),
        checkpoints=wanted,
        log_dir=given.log_dir or "",
        filters={1: tuple(given.duplicate_stdout_filters), 2: tuple(given.duplicate_stderr_filters)},
        redirects=given.redirects,
        tee=given.tee,
        shown_local_ranks=_ranks(given.local_ranks_filter),
        prefix=given.log_line_prefix_template,
        store_host="localhost" if hosts is not None else _store(given)[0],
        store_port=0 if hosts is not None else _store(given)[1],
        virtual_local_rank=given.virtual_local_rank,
        signals=tuple(name.strip() for name in given.signals_to_handle.split(",") if name.strip()),
        notices=path if told else "",
        notes=said,
    )


def _choose(given: argparse.Namespace, environ: Mapping[str, str], file: Mapping[str, Any]) -> dict[str, Any]:
    chosen: dict[str, Any] = {
        "local_nodes": 1,
        "standby": 0,
        "mode": Mode.ACT,
        "run_dir": "",
        "ui_port": 0,
        "network": "loopback",
        "racks": "",
        "tls": "auto",
        "leftovers": leftovers.LEAVE,
        "policy": None,
    }
    for key in _KEYS:
        if key in file:
            chosen[key] = file[key]
        if key == "policy":
            continue
        if environ.get(f"EVERSTEP_{key.upper()}"):
            chosen[key] = environ[f"EVERSTEP_{key.upper()}"]
        if getattr(given, key) is not None:
            chosen[key] = getattr(given, key)
    name = given.policy or environ.get("EVERSTEP_POLICY") or ""
    table = file.get("policy", {})
    table = {"name": table} if isinstance(table, str) else dict(table)
    if name:
        table["name"] = name
    chosen["policy"] = table
    return chosen


def _read_file(path: Path) -> dict[str, Any]:
    try:
        file = tomllib.loads(path.read_text())
    except OSError as error:
        raise ConfigError(f"--config {path}: cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"--config {path}: not TOML: {error}") from error
    allowed = tuple(dict.fromkeys((*_KEYS, *_TABLES)))
    for key in file:
        if key not in allowed:
            raise ConfigError(f"{path}: unknown key {key!r}; allowed: {', '.join(allowed)}")
    if not isinstance(file.get("policy", {}), dict | str):
        raise ConfigError(f"{path}: policy must be a preset's name or a table")
    return file


def _fits(value: object, wanted: type) -> bool:
    if wanted is bool or isinstance(value, bool):
        return isinstance(value, bool) and wanted is bool
    return isinstance(value, int if wanted is int else int | float)


def _about_size(given: argparse.Namespace, least: int, most: int) -> str:
    if most == least:
        return ""
    if least == 1:
        return f"--nnodes {given.nnodes}: other machines cannot join a run of one; MIN is used"
    return f"--node-rank {given.node_rank} is ignored: --nnodes {given.nnodes} may change" if given.node_rank else ""


def _check_network(network: object) -> None:
    if network != "loopback":
        raise ConfigError(f"network {str(network)!r}: only for nodes of one machine; leave it out with several hosts")


def _policy(
    table: dict[str, Any], given: argparse.Namespace, environ: Mapping[str, str], hosts: several.Hosts | None
) -> Policy:
    if hosts is not None:  # people start them, one after the other
        table.setdefault("node_timeout_s", hosts.join_limit_s)
    if hosts is not None and hosts.last_call_s is not None:
        table["shrink_after_s"] = hosts.last_call_s
    base = preset(str(table.pop("name", "default")))
    fields = {field.name: field for field in msgspec.structs.fields(Policy) if field.name != "name"}
    for key, value in table.items():
        if key not in fields:
            raise ConfigError(f"[policy] unknown key {key!r}; allowed: name, {', '.join(fields)}")
        if not _fits(value, fields[key].type):
            raise ConfigError(f"[policy] {key} = {value!r}: must be {_KINDS[fields[key].type]}")
    if given.max_restarts is not None:
        table["max_restarts"], table["exact_restarts"] = given.max_restarts, True
    if given.shutdown_timeout is not None:
        table["shutdown_s"] = table["stop_grace_s"] = float(given.shutdown_timeout)
    elif environ.get("TORCH_ELASTIC_SHUTDOWN_TIMEOUT"):
        name = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"
        table["shutdown_s"] = float(_whole(name, environ[name], least=0))
    return Policy(**{**msgspec.structs.asdict(base), **table})


def _launch(given: argparse.Namespace) -> Launch:
    if given.no_python and given.module:
        raise ConfigError("--no-python and --module exclude each other: don't use both at the same time")
    if given.run_path:
        return Launch.RUN_PATH
    if given.no_python:
        return Launch.COMMAND
    return Launch.MODULE if given.module else Launch.SCRIPT


def _run_id(given: argparse.Namespace) -> str:
    """The name of the run's directory, after --rdzv-id; empty: make one."""
    if given.standalone or given.rdzv_id in ("", "none", None):
        return ""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", given.rdzv_id).lstrip("._-")[:MAX_ID_CHARS]
    return "" if name == LATEST else name


def _rdzv_id(given: argparse.Namespace) -> str:
    """The id that ranks get: the one that was given, torchrun's "none" where it would meet others, else a new one."""
    if not given.standalone and given.rdzv_id not in ("", "none", None):
        return str(given.rdzv_id)
    is_alone = given.standalone or (
        given.rdzv_backend == "static" and not given.rdzv_endpoint and given.master_port is None
    )
    return str(uuid.uuid4()) if is_alone else "none"


def _store(given: argparse.Namespace) -> tuple[str, int]:
    """MASTER_ADDR, and MASTER_PORT if it was asked for. A static rendezvous is where the flags say; any other where
    torchrun would find a free port."""
    is_static = not given.standalone and given.rdzv_backend == "static"
    if is_static and given.rdzv_endpoint:
        endpoint = several.first_endpoint(given.rdzv_endpoint)
        host, endpoint_port = part(several.RENDEZVOUS, "parse_rendezvous_endpoint")(endpoint, 0)
        return str(host), int(endpoint_port)
    port = _port("master-port", given.master_port or 0)
    if is_static and given.master_port is not None:
        return given.master_addr or "127.0.0.1", port
    return given.local_addr or "localhost", 0


def _mode(value: object) -> Mode:
    try:
        return Mode(str(value))
    except ValueError:
        raise ConfigError(f"no mode {str(value)!r}; there are: {', '.join(Mode)}") from None


def _network(value: object) -> str:
    if value not in ("loopback", "namespaces", "auto"):
        raise ConfigError(f"network {str(value)!r}: must be loopback, namespaces or auto")
    return str(value)


def _racks(value: object) -> tuple[str, ...]:
    """Racks from a list, as in the file, or a text with commas."""
    names = [str(name).strip() for name in (value if isinstance(value, list) else str(value or "").split(","))]
    if names == [""]:
        return ()
    for name in names:
        if why := why_no_rack(name):
            raise ConfigError(f"racks {value!r}: {why}")
    return tuple(names)


def _leftovers(value: object) -> str:
    if str(value) not in leftovers.CHOICES:
        raise ConfigError(f"leftovers {str(value)!r}: must be one of {', '.join(leftovers.CHOICES)}")
    return str(value)


def _tls(value: object) -> str:
    if value not in ("auto", "always"):
        raise ConfigError(f"tls {str(value)!r}: must be auto or always")
    return str(value)


def _whole(name: str, value: object, least: int) -> int:
    try:
        number = int(str(value))
    except ValueError:
        raise ConfigError(f"{name} = {value!r}: must be a whole number") from None
    if number < least:
        raise ConfigError(f"{name} = {number}: must be at least {least}")
    return number


def _port(name: str, value: object) -> int:
    number = _whole(name, value, least=0)
    if number > 65535:
        raise ConfigError(f"{name} = {number}: must be between 0 and 65535")
    return number


def _ranks(text: str | None) -> tuple[int, ...] | None:
    if not text:
        return None
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(f"--local-ranks-filter {text!r}: must be numbers, as 0,1,2") from None
