"""torch's `TCPStore` without the rest of torch: a third of the processor time, while the ranks need the processors.

Only for the process with the stores, which uses nothing else of torch and never imports a user's code. `loaded` puts
empty packages where torch's extension module expects its own; whatever is missing then raises, and the process begins
again with `imported`.
"""

import ctypes
import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

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
    """As a program imports it. Raises whatever a broken build raises."""
    return importlib.import_module("torch.distributed").TCPStore
