"""A program that makes an `accelerate.Accelerator` without what `accelerate launch` would have told it: said once, on
rank 0. Under torchrun the same program trains with other settings, or each rank for itself, without a word."""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from everstep.worker.process import saying
from everstep.worker.process.signals import came_from_signal

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import ModuleType

    from everstep.worker.link.runtime import Runtime

MODULE = "accelerate.accelerator"
_OWN_SETTINGS = ("transformers",)
"""Libraries that make an Accelerator from settings of their own."""


def hook_accelerator(runtime: Runtime, module: ModuleType) -> None:
    cls: Any = module.Accelerator
    original = cls.__init__

    @functools.wraps(original)
    def initialize(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - as accelerate has it
        original(self, *args, **kwargs)
        try:
            if runtime.rank == 0:
                library = sys._getframe(1).f_globals.get("__name__", "").partition(".")[0]
                is_set = bool(args) or kwargs.get("mixed_precision") is not None or library in _OWN_SETTINGS
                _say(advice(self, runtime.world_size, os.environ, is_set=is_set))
        except Exception as error:
            if came_from_signal(error):
                raise
            runtime.report_fault("advice on accelerate", f"{type(error).__name__}: {error}")

    cls.__init__ = initialize


_said: set[str] = set()


def _say(line: str) -> None:
    if line and line not in _said:
        _said.add(line)
        saying.say(line)


def advice(accelerator: Any, world_size: int, environ: Mapping[str, str], *, is_set: bool) -> str:  # noqa: ANN401
    """One line; empty: nothing is missing. `is_set`: the program says itself what the launcher would have said."""
    if world_size > 1 and accelerator.num_processes == 1:
        return (
            f"accelerate made {world_size} trainings of one process each, which share nothing: without a GPU it joins "
            "ranks only with Accelerator(cpu=True) or ACCELERATE_USE_CPU. To start with that: "
            f"everstep run --nproc-per-node {world_size} accelerate launch --cpu ... (docs/launchers.md)"
        )
    file = config_file(environ)
    if any(name.startswith("ACCELERATE_") for name in environ) or (is_set and file is None):
        return ""
    found = f"mixed_precision={accelerator.mixed_precision}"
    found += f" gradient_accumulation_steps={accelerator.gradient_accumulation_steps}"
    unread = f", and {file} is not read" if file else ""
    return (
        f"started without accelerate's launcher: {found}{unread}. "
        "To start with other settings of it: everstep run accelerate launch ... (docs/launchers.md)"
    )


def config_file(environ: Mapping[str, str]) -> Path | None:
    """Return the file that `accelerate config` has written; None if there is none."""
    cache = environ.get("HF_HOME") or f"{environ.get('XDG_CACHE_HOME') or '~/.cache'}/huggingface"
    folder = Path(cache).expanduser() / "accelerate"
    files = (folder / "default_config.yaml", folder / "default_config.json")
    return next((file for file in files if file.is_file()), None)
