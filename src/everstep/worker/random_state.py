"""Random state of a process: Python, NumPy (if the program uses it), torch on the CPU and on every CUDA device.

Called by `everstep.State`: captured after each step, restored before the first step after a restart, so that the
numbers drawn are those of a run that was never interrupted. Generators of the user's own are not known here; they
go into the State as objects.
"""

import array
import ctypes
import random
import sys
from typing import Any

import torch


def capture() -> dict[str, Any]:
    """Everything `restore` needs, cheap to pickle."""
    state = capture_host()
    if torch.cuda.is_initialized():
        state["cuda"] = [_bytes_of(each) for each in torch.cuda.get_rng_state_all()]
    return state


def capture_host() -> dict[str, Any]:
    """The same without devices, which would have to be waited for: what a data loader can draw from."""
    version, words, gauss = random.getstate()
    state: dict[str, Any] = {
        "python": (version, array.array("Q", words).tobytes(), gauss),
        "torch": _bytes_of(torch.get_rng_state()),
    }
    numpy = sys.modules.get("numpy")
    if numpy is not None and "numpy.random" in sys.modules:
        drawn = numpy.random.get_state()
        if isinstance(drawn, tuple):  # or another generator than NumPy's usual one was put in its place
            name, words, *rest = drawn
            drawn = (name, words.tobytes(), *rest)  # an array takes ten times as long to pickle
        state["numpy"] = drawn
    return state


def restore(state: dict[str, Any]) -> None:
    """Set what was captured. What this process does not have (NumPy not imported, fewer devices) raises."""
    version, words, gauss = state["python"]
    random.setstate((version, tuple(array.array("Q", words)), gauss))
    torch.set_rng_state(_tensor_of(state["torch"]))
    if "numpy" in state:
        import numpy as np

        drawn = state["numpy"]
        if isinstance(drawn, tuple):
            name, words, *rest = drawn
            drawn = (name, np.frombuffer(words, dtype=np.uint32), *rest)
        np.random.set_state(drawn)
    if "cuda" in state:
        torch.cuda.set_rng_state_all([_tensor_of(each) for each in state["cuda"]])


def _bytes_of(state: torch.Tensor) -> bytes:
    """As bytes it goes with the pickle. A tensor of its own in every step would have to be copied at once."""
    return ctypes.string_at(state.data_ptr(), state.nbytes)


def _tensor_of(state: bytes | torch.Tensor) -> torch.Tensor:
    """Earlier versions kept the tensor."""
    return state if isinstance(state, torch.Tensor) else torch.frombuffer(bytearray(state), dtype=torch.uint8)
