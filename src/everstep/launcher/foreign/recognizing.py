"""Whether the program of `everstep run` is a launcher: by its name, and only where no script has that name."""

import os
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from everstep.errors import ConfigError

_MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torch.distributed.launch",
    "accelerate.commands.launch": "accelerate",
    "accelerate.commands.accelerate_cli": "accelerate CLI",
    "deepspeed": "deepspeed",
    "deepspeed.launcher.runner": "deepspeed",
}
_COMMANDS = {
    "torchrun": "torchrun",
    "accelerate": "accelerate CLI",
    "accelerate-launch": "accelerate",
    "deepspeed": "deepspeed",
    "ds": "deepspeed",
}
_WITH_VALUE = ("-X", "-W")


class Called(msgspec.Struct, frozen=True):
    """A launcher on the command line."""

    name: str  # torchrun, torch.distributed.launch, accelerate, deepspeed
    args: tuple[str, ...]


def recognize(program: str, args: Sequence[str], *, is_module: bool) -> Called | None:
    """None: an ordinary program. Raises ConfigError for a launcher of another Python than the ranks'."""
    if is_module:
        return _called(_MODULES.get(program), args)
    name = Path(program).name
    if _is_runnable(Path(program)) and not _is_beside_python(program):
        return None
    if re.fullmatch(r"python[0-9.]*", name):
        module, rest = _module_of(args)
        called = _called(_MODULES.get(module), rest)
    else:
        called = _called(_COMMANDS.get(name), args)
    if called is not None:
        _check_python(program)
    return called


def _called(name: str | None, args: Sequence[str]) -> Called | None:
    if name != "accelerate CLI":
        return Called(name, tuple(args)) if name else None
    if not args or args[0] != "launch":
        raise ConfigError("accelerate: only `accelerate launch` starts a training")
    return Called("accelerate", tuple(args[1:]))


def _module_of(args: Sequence[str]) -> tuple[str, Sequence[str]]:
    """The module of `python [options] -m MODULE ...`, and what follows it. Options end with the interpreter that has
    them: torchrun and accelerate do not pass them on either."""
    position = 0
    while position < len(args) and args[position].startswith("-") and args[position] != "-m":
        position += 2 if args[position] in _WITH_VALUE else 1
    if args[position : position + 1] != ["-m"] or len(args) < position + 2:
        return "", ()
    return args[position + 1], args[position + 2 :]


def _is_runnable(path: Path) -> bool:
    return path.is_file() or (path / "__main__.py").exists()


def _is_beside_python(program: str) -> bool:
    return os.sep in program and Path(program).parent.absolute() == Path(sys.executable).parent


def _check_python(program: str) -> None:
    """A launcher of another environment would start ranks with other libraries."""
    found, python = shutil.which(program), Path(sys.executable)
    if found is None or Path(found).parent.absolute() == python.parent:
        return
    if sys.prefix == sys.base_prefix and Path(found).resolve().parent == python.resolve().parent:
        return  # /usr/bin/python3 is not always beside /usr/local/bin/torchrun
    raise ConfigError(
        f"{program} is {found}, and everstep's Python is {sys.executable}: they have other libraries. Nothing was "
        "started. Install everstep in the launcher's environment"
    )
