"""torch's `TCPStore` without the rest of torch: a third of the CPU time, while the ranks need the CPUs.

Only for the process with the stores, which uses nothing else of torch and never imports a user's code. `loaded` puts
empty packages where torch's extension module expects its own; whatever is missing then raises, and the process begins
again with `imported`.
"""

import ctypes
import importlib
import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

_LIBUV_TAKES_SOCKETS = (2, 11)
"""Seen: 2.6 refuses a listening socket unless the store is of its older kind, which every torch so far has."""

_DEPENDENCIES = "lib/libtorch_global_deps.so"


def loaded() -> Any:  # noqa: ANN401
    """From the extension module alone. Raises ImportError, OSError, AttributeError where this torch is made otherwise;
    the process must not import torch any more then."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise ImportError("torch is not installed", name="torch")
    folder = Path(spec.origin).parent
    for name, places in (("torch", [str(folder)]), ("torch.distributed", [])):
        package = ModuleType(name)
        package.__path__ = places
        sys.modules[name] = package
    ctypes.CDLL(str(folder / _DEPENDENCIES), mode=ctypes.RTLD_GLOBAL)
    extension = importlib.import_module("torch._C")
    if not extension._c10d_init():
        raise ImportError("torch was built without distributed")
    return importlib.import_module("torch._C._distributed_c10d").TCPStore


def imported() -> Any:  # noqa: ANN401
    """Import it as a program does. Raises whatever a broken build raises."""
    return importlib.import_module("torch.distributed").TCPStore


def kind() -> dict[str, bool]:
    """Arguments of the store that make it take a socket of ours. torch is loaded or imported."""
    return {} if _version(Path(sys.modules["torch"].__path__[0])) >= _LIBUV_TAKES_SOCKETS else {"use_libuv": False}


def _version(folder: Path) -> tuple[int, int]:
    """The version of the torch in that folder; an unknown one counts as new."""
    try:
        found = re.search(r"__version__ = ['\"](\d+)\.(\d+)", (folder / "version.py").read_text())
    except OSError:
        found = None
    return (int(found[1]), int(found[2])) if found else _LIBUV_TAKES_SOCKETS
