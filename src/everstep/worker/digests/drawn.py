"""Has a generator drawn, or been set, since it was last looked at?

To ask Python's and NumPy's generators for their states takes a fifth of a millisecond, most of it element by element,
and most programs draw from neither between two steps. So the memory in which a generator keeps its state is compared
with what it was: if it is the same to the last bit, the state read then still holds. What the bytes mean is never
looked at. Answers are None for any other generator than the usual ones: the layout of its memory is unknown.
"""

import ctypes
import platform
import random
from typing import Any

_HEAD_BYTES = object.__basicsize__
"""The header of every object: its type and counts of references, which change all the time."""

_MT19937_BYTES = 624 * 4 + 4
"""The size of numpy.random.MT19937's state: its key and the position in it."""

Look = tuple[Any, ...]
"""To be compared with another one by `==`."""

_is_cpython = platform.python_implementation() == "CPython"  # where an object's id is its address


def of_python() -> Look | None:
    """A look at the functions of `random`. The second number of a pair that `gauss` has drawn is an attribute."""
    generator = getattr(random.getstate, "__self__", None)
    if not _is_cpython or type(generator) is not random.Random:
        return None
    return id(generator), _inside(generator), generator.gauss_next  # type: ignore[attr-defined]


def of_numpy(numpy: Any) -> Look | None:  # noqa: ANN401 - the module
    """A look at the functions of `numpy.random`: a generator of bits, and an object that keeps the second of a pair."""
    generator = getattr(numpy.random.get_state, "__self__", None)
    if not _is_cpython or type(generator) is not numpy.random.RandomState:
        return None
    bits: Any = getattr(generator, "_bit_generator", None)
    if type(bits) is not numpy.random.MT19937:
        return None
    return id(bits), ctypes.string_at(bits.ctypes.state_address, _MT19937_BYTES), _inside(generator)


def _inside(thing: object) -> bytes:
    """The bytes of an object itself, without its head."""
    return ctypes.string_at(id(thing) + _HEAD_BYTES, type(thing).__basicsize__ - _HEAD_BYTES)
