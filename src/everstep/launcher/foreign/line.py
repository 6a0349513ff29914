"""The request of another launcher's command line, in torchrun's terms. Pure."""

from collections.abc import Sequence

import msgspec

TEMPLATE = "${local_rank}"
"""In an argument: the agent puts the rank's own number there, as torchrun does."""

_OF_TORCHRUN = (
    *("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),
    *("GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT"),
    *("TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE"),
    *("TORCHELASTIC_SIGNALS_TO_HANDLE", "TORCH_NCCL_ASYNC_ERROR_HANDLING", "OMP_NUM_THREADS"),
)
_OF_DEEPSPEED = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE"}
"""The last one is not DeepSpeed's: without it rank 0 would open a second store at the port of ours."""

UNSET = {
    "ranks": (),
    "bare ranks": tuple(name for name in _OF_TORCHRUN if name not in _OF_DEEPSPEED),
    "one process": _OF_TORCHRUN,
}
"""Variables of torchrun's that a launcher's processes do not have, by what it starts: `ranks` as torchrun does, `bare
ranks` (deepspeed), or `one process` (accelerate with neither a second process nor a second device)."""


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """Another launcher's command line, understood."""

    launcher: str  # as its users call it
    flags: tuple[str, ...] = ()  # torchrun's
    program: str = ""
    args: tuple[str, ...] = ()  # of the program, with TEMPLATE where a rank's own number belongs
    environ: dict[str, str] = {}  # variables that the launcher gives its processes
    removed: tuple[str, ...] = ()  # variables of this process that it takes away from them
    starts: str = "ranks"  # a key of UNSET
    refused: str = ""  # why nothing can be started; empty: it can


def literal(args: Sequence[str]) -> tuple[str, ...]:
    """Arguments in which the agent replaces nothing."""
    return tuple(arg.replace("$", "$$") for arg in args)
