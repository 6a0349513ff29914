"""Modules of this process that a waiting twin may import ahead: the standard library's and site-packages' only.

The user's own files are never among them: they may change between generations, and importing them has effects that
belong to the user's program. Pure reading of `sys.modules`; called once by the runtime after the first step.
"""

import functools
import os
import sys
import sysconfig
from collections.abc import Collection, Mapping
from types import ModuleType

_NEVER = ("everstep", "__main__", "__mp_main__", "sitecustomize", "usercustomize")


@functools.lru_cache(maxsize=4096)
def _real_folder(path: str) -> str:
    """Asked once per folder, not per file: it looks at every part of the path, on the training thread."""
    return os.path.realpath(path)


def library_roots() -> tuple[str, ...]:
    """Folders whose files are not the user's own, each with a trailing separator."""
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    roots = {os.path.realpath(sysconfig.get_path(name)) for name in names}
    roots |= {os.path.realpath(p) for p in sys.path if os.path.basename(p) in {"site-packages", "dist-packages"}}
    return tuple(sorted(root + os.sep for root in roots))


def is_library_file(path: str, roots: tuple[str, ...]) -> bool:
    """Whether a source file belongs to the interpreter or to an installed package."""
    if path.startswith("<frozen"):
        return True
    return (_real_folder(os.path.dirname(path)) + os.sep).startswith(roots)


_READ_ON_IMPORT = (
    "TORCH", "PYTORCH", "OMP_", "MKL_", "KMP_", "HF_", "TRANSFORMERS_", "ACCELERATE_", "NCCL_", "CUDA_", "PYTHON",
    "TRITON_", "TOKENIZERS_", "DIFFUSERS_", "DATASETS_", "XLA_", "TF_", "WANDB_",
)  # fmt: skip
"""Prefixes of variables that libraries look at when they are imported."""

_READ_LATER = (
    "ACCELERATE_DEEPSPEED_", "ACCELERATE_MIXED_PRECISION", "ACCELERATE_USE_", "PYTHONHASHSEED", "TORCH_FR_",
    "TORCH_NCCL_",
)  # fmt: skip
"""Prefixes of some of those that no import reads: programs set them for their children and for the process groups that
they make, and Trainer for its Accelerator."""


def variables_changed(
    before: Mapping[str, str], now: Mapping[str, str], but: Collection[bytes] = ()
) -> dict[str, str | None]:
    """Those that a library may have looked at when it was imported after `before`, and what they are now. Where an
    import ahead does not lead to the same values by itself, the program has set them, and it would be another thing.
    `but`: what the launcher says of a rank is no program's doing, and differs from one generation to the next."""
    names = [name for name in sorted({*before, *now}) if name.startswith(_READ_ON_IMPORT) and name.encode() not in but]
    names = [name for name in names if not name.startswith(_READ_LATER)]
    return {name: now.get(name) for name in names if before.get(name) != now.get(name)}


def importable_ahead(known: frozenset[str] = frozenset()) -> list[str]:
    """Names of loaded library modules that are not `known`, in the order in which they were loaded."""
    roots = library_roots()
    loaded = list(sys.modules.items())
    return [name for name, module in loaded if name not in known and _is_library(name, module, roots)]


def _is_library(name: str, module: ModuleType | None, roots: tuple[str, ...]) -> bool:
    if name.split(".", 1)[0] in _NEVER:
        return False
    spec = getattr(module, "__spec__", None)
    origin = getattr(spec, "origin", None)
    if spec is None or spec.name != name or not isinstance(origin, str):
        return False
    return origin in {"built-in", "frozen"} or is_library_file(origin, roots)
