"""Random state of a process: Python, NumPy (if the program uses it), torch on the CPU and on every CUDA device.

Called by `everstep.State`: captured after each step, restored before the first step after a restart, so that the
numbers drawn are those of a run that was never interrupted. Generators of the user's own are not known here; they
go into the State as objects.
"""

import array
import random
import sys
from typing import Any

import torch


def capture() -> dict[str, Any]:
    """Everything `restore` needs, cheap to pickle."""
    state = capture_host()
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def capture_host() -> dict[str, Any]:
    """The same without devices, which would have to be waited for: what a data loader can draw from."""
    version, words, gauss = random.getstate()
    state: dict[str, Any] = {
        "python": (version, array.array("Q", words).tobytes(), gauss),
        "torch": torch.get_rng_state(),
    }
    numpy = sys.modules.get("numpy")
    if numpy is not None and "numpy.random" in sys.modules:
        state["numpy"] = numpy.random.get_state()
    return state


def restore(state: dict[str, Any]) -> None:
    """Set what was captured. What this process does not have (NumPy not imported, fewer devices) raises."""
    version, words, gauss = state["python"]
    random.setstate((version, tuple(array.array("Q", words)), gauss))
    torch.set_rng_state(state["torch"])
    if "numpy" in state:
        import numpy as np

        np.random.set_state(state["numpy"])
    if "cuda" in state:
        torch.cuda.set_rng_state_all(state["cuda"])
