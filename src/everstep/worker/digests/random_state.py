"""Random state of a process: Python, NumPy (if the program uses it), torch on the CPU and on every CUDA device, and the
named generators of frameworks (`trackers`).

Called by `everstep.State`: captured after each step, restored before the first step after a restart, so that the
numbers drawn are those of a run that was never interrupted. Generators of the user's own are not known here; they
go into the State as objects.
"""

import array
import ctypes
import random
import sys
from collections.abc import Callable
from typing import Any

import torch

from everstep.worker.digests import drawn, trackers

_told: dict[str, tuple[drawn.Look | None, Any]] = {}
"""How each generator's memory looked last, and what it says where that stays so; None: not asked for yet."""


def capture() -> dict[str, Any]:
    """Everything `restore` needs, cheap to pickle."""
    state = capture_host()
    if torch.cuda.is_initialized():
        state["cuda"] = [_bytes_of(each) for each in torch.cuda.get_rng_state_all()]
    named = trackers.capture()
    if named:
        state["trackers"] = {which: {n: _bytes_of(each) for n, each in by.items()} for which, by in named.items()}
    return state


def capture_host() -> dict[str, Any]:
    """Capture the state that a data loader can draw from: all but that of devices, which would have to be waited
    for."""
    state: dict[str, Any] = {
        "python": _unless_drawn("python", drawn.of_python, _of_python),
        "torch": _bytes_of(torch.get_rng_state()),
    }
    numpy = sys.modules.get("numpy")
    if numpy is not None and "numpy.random" in sys.modules:
        state["numpy"] = _unless_drawn("numpy", lambda: drawn.of_numpy(numpy), lambda: _of_numpy(numpy))
    return state


def _unless_drawn(name: str, look: Callable[[], drawn.Look | None], ask: Callable[[], Any]) -> Any:  # noqa: ANN401
    """Return what `ask` returns, or returned when the generator looked the same. The state of a generator that draws
    between any two questions is not kept: to be sure of it takes a second question, as another thread may draw, or set
    it, during the first."""
    seen = look()
    last, told = _told.get(name, (None, None))
    if seen is None or seen != last:
        _told[name] = seen, None
        return ask()
    if told is None:
        told = ask()
        if look() == seen and ask() == told and look() == seen:
            _told[name] = seen, told
    return told


def _of_python() -> tuple[Any, ...]:
    version, words, gauss = random.getstate()
    return version, array.array("Q", words).tobytes(), gauss


def _of_numpy(numpy: Any) -> Any:  # noqa: ANN401 - the module
    state = numpy.random.get_state()
    if not isinstance(state, tuple):  # another generator than NumPy's usual one was put in its place
        return state
    name, words, *rest = state
    return (name, words.tobytes(), *rest)  # an array takes ten times as long to pickle


def restore(state: dict[str, Any]) -> None:
    """Set what was captured. What this process does not have (NumPy not imported, fewer devices) raises."""
    version, words, gauss = state["python"]
    random.setstate((version, tuple(array.array("Q", words)), gauss))
    torch.set_rng_state(_tensor_of(state["torch"]))
    if "numpy" in state:
        import numpy as np

        told = state["numpy"]
        if isinstance(told, tuple):
            name, words, *rest = told
            told = (name, np.frombuffer(words, dtype=np.uint32), *rest)
        np.random.set_state(told)
    if "cuda" in state:
        torch.cuda.set_rng_state_all([_tensor_of(each) for each in state["cuda"]])
    named = state.get("trackers", {})
    trackers.restore({which: {n: _tensor_of(each) for n, each in by.items()} for which, by in named.items()})


def _bytes_of(state: torch.Tensor) -> bytes:
    """Return the state as bytes, which become part of the pickle. A tensor of its own in every step would have to be
    copied at once."""
    return ctypes.string_at(state.data_ptr(), state.nbytes)


def _tensor_of(state: bytes | torch.Tensor) -> torch.Tensor:
    """Earlier versions kept the tensor."""
    return state if isinstance(state, torch.Tensor) else torch.frombuffer(bytearray(state), dtype=torch.uint8)
