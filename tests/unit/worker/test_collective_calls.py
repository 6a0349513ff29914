"""Calls of collectives are timed, and nothing that the program can see of them changes."""

import inspect
import time
import traceback
import warnings
from types import ModuleType
from typing import Any

import pytest

from everstep.worker.hooks import collective_calls
from everstep.worker.link import calls

LOGGER = """
import functools

def logged(func):
    @functools.wraps(func)
    def wrapper(*args, **kwargs):
        try:
            return func(*args, **kwargs)
        except Exception as error:
            print(error)
            raise

    return wrapper
"""

PROGRAM = """
import time, warnings

@logged
def all_reduce(tensor, async_op=False):
    if tensor is None:
        raise ValueError("no tensor")
    warnings.warn("old", FutureWarning, stacklevel=2)
    time.sleep(tensor)
    return "work" if async_op else None

@logged
def barrier():
    all_reduce(0.001)

def broadcast(tensor):
    return None
"""


@pytest.fixture
def torch_like() -> ModuleType:
    """Two modules that are made as torch's are."""
    logger, module = ModuleType("torch_like.logger"), ModuleType("torch_like")
    exec(compile(LOGGER, "logger.py", "exec"), vars(logger))
    vars(module)["logged"] = vars(logger)["logged"]
    exec(compile(PROGRAM, "program.py", "exec"), vars(module))
    calls.noted.clear()
    return module


def _told(module: Any) -> tuple[str, list[str], list[tuple[str, int]], inspect.Signature]:
    with pytest.raises(ValueError) as caught:
        module.all_reduce(None)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        module.all_reduce(0.0)
    text = "".join(traceback.format_exception(caught.value))
    files = [frame.filename for frame in traceback.extract_tb(caught.tb)]
    return text, files, [(each.filename, each.lineno) for each in warned], inspect.signature(module.all_reduce)


def test_tracebacks_warnings_and_names_stay_as_they_were(torch_like: Any) -> None:
    function, before = torch_like.all_reduce, _told(torch_like)
    collective_calls.hook(torch_like)
    assert torch_like.all_reduce is function
    assert _told(torch_like) == before
    assert set(before[1]) == {__file__, "logger.py", "program.py"}  # and no frame of ours


def test_a_filter_by_module_still_finds_torch(torch_like: Any) -> None:
    collective_calls.hook(torch_like)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", module="torch_like.logger")
        torch_like.all_reduce(0.0)


@pytest.mark.filterwarnings("ignore:old")
def test_calls_that_are_over_are_noted_with_their_time(torch_like: Any) -> None:
    collective_calls.hook(torch_like)
    collective_calls.hook(torch_like)  # twice changes nothing
    before = time.time_ns()
    torch_like.all_reduce(0.02)
    torch_like.all_reduce(0.0, async_op=True)
    with pytest.raises(ValueError):
        torch_like.all_reduce(None)
    torch_like.barrier()
    (_, begin, end), inner, outer = calls.newest()
    assert begin >= before
    assert end - begin >= 0.02e9
    assert outer[1] <= inner[1] <= inner[2] <= outer[2]


def test_what_is_made_otherwise_is_left_alone(torch_like: Any) -> None:
    function, code = torch_like.broadcast, torch_like.broadcast.__code__
    torch_like.reduce = torch_like.gather = None
    collective_calls.hook(torch_like)
    assert torch_like.broadcast is function
    assert function.__code__ is code
