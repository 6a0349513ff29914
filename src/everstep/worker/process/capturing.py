"""Does the program capture a CUDA graph at this moment? Then nothing of ours may touch a device: an event that is asked
spoils the capture, and a copy that is begun becomes a part of it. A thread of ours that works on a device beside the
program is relaxed first (`relax`). Imports no torch."""

import ctypes
import os
import sys
import threading
from typing import Any

_EXCHANGES = (
    ("libcuda.so.1", "cuThreadExchangeStreamCaptureMode"),
    ("libcudart.so.13", "cudaThreadExchangeStreamCaptureMode"),
    ("libcudart.so.12", "cudaThreadExchangeStreamCaptureMode"),
)
"""The driver's call, and the same of a runtime. Only of a library that torch has loaded."""

_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED

_here = threading.local()


def is_capturing() -> bool:
    """Whether the calling thread's current stream is being captured. False where CUDA is not in use."""
    cuda: Any = sys.modules.get("torch.cuda")
    return cuda is not None and cuda.is_initialized() and bool(cuda.is_current_stream_capturing())


def relax() -> bool:
    """Let the calling thread ask CUDA for anything while another one captures a graph, without harm to the graph. For
    the life of the thread. False: it cannot be done (no CUDA in this process, or a library that does not do it)."""
    if not getattr(_here, "is_relaxed", False):
        _here.is_relaxed = any(_exchange(library, call) for library, call in _EXCHANGES)
    return bool(_here.is_relaxed)


def _exchange(library: str, call: str) -> bool:
    try:
        function = getattr(ctypes.CDLL(library, mode=os.RTLD_NOLOAD | os.RTLD_LAZY), call)
    except (OSError, AttributeError):
        return False
    return bool(function(ctypes.byref(ctypes.c_int(_RELAXED))) == 0)
