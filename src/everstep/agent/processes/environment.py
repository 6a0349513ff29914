"""The environment of a rank: the user's own, exactly torchrun's variables, and a few of ours. Pure."""

import string
from collections.abc import Mapping, Sequence
from pathlib import Path

from everstep.model.actions import StartWorkers
from everstep.model.spec import RunSpec

_PRIVATE = ("EVERSTEP_LINK_FD", "EVERSTEP_TWINS_FD", "EVERSTEP_AGENT_PID")
WARD_VARIABLE = "EVERSTEP_WARD"
"""Marks every process below one agent; see agent/ranks/warden.py."""

_INTERFACE_VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME")

FLIGHT_RECORD_ENTRIES = "512"
"""Size of torch's flight recorder's ring; without the variable it is off where NCCL is not used. Reading it holds the
GIL for some ten microseconds per entry: torch's own 2,000 entries would stop a rank for 20 ms."""

_SIGNALS = "TORCHELASTIC_SIGNALS_TO_HANDLE"


def base_environment(
    environ: Mapping[str, str],
    nproc: int,
    ward: str,
    *,
    watches: bool = False,
    interface: str = "",
    profiler: str = "",
    unset: Sequence[str] = (),
) -> dict[str, str]:
    """Variables that all ranks of this node share.

    torchrun's rule for threads: one each, unless the user set it, if there are several ranks on the node. `interface`:
    the one that other nodes are reached through, where the host's name does not resolve to it; collectives use it
    unless the user named another. `profiler`: a plug-in for NCCL; empty: none. `unset`: torchrun's variables that
    ranks do not get."""
    base = {name: value for name, value in environ.items() if name not in _PRIVATE}
    if nproc > 1 and "OMP_NUM_THREADS" not in unset:
        base.setdefault("OMP_NUM_THREADS", "1")
    if _SIGNALS in base:  # after it, as with torchrun
        base[_SIGNALS] = base.pop(_SIGNALS)
    if watches:
        base.setdefault("TORCH_FR_BUFFER_SIZE", FLIGHT_RECORD_ENTRIES)
        if profiler:
            base.setdefault("NCCL_PROFILER_PLUGIN", profiler)
    for name in _INTERFACE_VARIABLES if interface else ():
        base.setdefault(name, interface)
    base[WARD_VARIABLE] = ward
    return base


def rank_environment(
    base: Mapping[str, str],
    spec: RunSpec,
    action: StartWorkers,
    *,
    local_rank: int,
    run: str,
    max_restarts: int,
    error_file: Path,
) -> dict[str, str]:
    """The whole environment of one rank, in torchrun's order, ours last."""
    rank = action.first_rank + local_rank
    ours = {
        "RANK": rank,
        "GROUP_RANK": action.slot,
        "ROLE_RANK": rank,
        "ROLE_NAME": spec.role,
        "LOCAL_WORLD_SIZE": action.num_ranks,
        "WORLD_SIZE": action.world_size,
        "GROUP_WORLD_SIZE": action.num_slots,
        "ROLE_WORLD_SIZE": action.world_size,
        "MASTER_ADDR": action.store_host,
        "MASTER_PORT": action.store_port,
        "TORCHELASTIC_RESTART_COUNT": action.generation,
        "TORCHELASTIC_MAX_RESTARTS": max_restarts,
        "TORCHELASTIC_RUN_ID": spec.rdzv_id or run,
        "TORCHELASTIC_USE_AGENT_STORE": True,
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": base.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
        **_local_rank(base, local_rank, is_virtual=spec.virtual_local_rank),
        "TORCHELASTIC_ERROR_FILE": error_file,
        "EVERSTEP_RUN_ID": run,
        "EVERSTEP_GENERATION": action.generation,
        "EVERSTEP_SLOT": action.slot,
        "EVERSTEP_RESUME_STEP": "" if action.resume_step is None else action.resume_step,
    }
    return {**base, **{name: str(value) for name, value in ours.items() if name not in spec.unset}}


def filled_in(args: Sequence[str], local_rank: int) -> list[str]:
    """The program's arguments as torchrun gives them: `${local_rank}` is the rank's, `$$` is one dollar."""
    return [string.Template(arg).safe_substitute(local_rank=local_rank) for arg in args]


def _local_rank(base: Mapping[str, str], local_rank: int, *, is_virtual: bool) -> dict[str, object]:
    """--virtual-local-rank: every rank is the first one, and sees one device. The launcher has counted them."""
    if not is_virtual:
        return {"LOCAL_RANK": local_rank}
    visible = base.get("CUDA_VISIBLE_DEVICES")
    device = str(local_rank) if visible is None else visible.split(",")[local_rank].strip()
    return {"LOCAL_RANK": 0, "CUDA_VISIBLE_DEVICES": device}
