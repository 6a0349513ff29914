"""Random numbers over a fork: what the program has seeded continues as it was; what it has not is drawn anew.

Python's `random` seeds itself anew in every fork, also where the program has seeded it; NumPy's and torch's global
generators never do. Under torchrun a rank that is started again runs its own seeds again, and has another entropy where
it sets none.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # `typing` would be imported before the program imports it
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

_BLOCK = 624
_MAX_BLOCKS = 32
"""Limit of numbers drawn before parking without a seed; beyond that the generator counts as seeded."""


class Draws:
    """How the global generators began: noted when their modules have just been loaded."""

    def __init__(self) -> None:
        self._python: Any = None
        self._numpy: Any = None
        self._torch: int | None = None
        self._kept: dict[str, Any] = {}

    def begin_python(self, module: ModuleType) -> None:
        self._python = module.getstate() if hasattr(module, "getstate") else None

    def begin_numpy(self, module: ModuleType) -> None:
        self._numpy = module._rand.get_state(legacy=False)

    def begin_torch(self, module: ModuleType) -> None:
        self._torch = module.default_generator.initial_seed()

    def keep(self) -> None:
        """Before a fork."""
        python = sys.modules.get("random")
        self._kept = {"python": python.getstate()} if self._python is not None and python is not None else {}

    def restore(self) -> None:
        """In a fork that continues as the same program: every generator as it was before."""
        python = sys.modules.get("random")
        if python is not None and "python" in self._kept:
            python.setstate(self._kept["python"])

    def renew(self) -> None:
        """In a fork that comes back as a new start: entropy of its own where the program has set no seed."""
        python, torch = sys.modules.get("random"), sys.modules.get("torch")
        if python is not None and self._python is not None and _is_python_unseeded(python, self._python):
            python.seed()
        numpy = sys.modules.get("numpy.random")
        if numpy is not None and self._numpy is not None and _is_numpy_unseeded(numpy, self._numpy):
            numpy.seed()
        if torch is not None and self._torch is not None and torch.default_generator.initial_seed() == self._torch:
            torch.default_generator.seed()  # torch.seed() would touch devices


def _is_python_unseeded(module: ModuleType, began: Any) -> bool:  # noqa: ANN401
    """Whether the words of the state follow from those at the beginning by drawing alone."""
    words = module.getstate()[1][:-1]
    shadow = module.Random()
    shadow.setstate(began)
    for _ in range(_MAX_BLOCKS):
        if shadow.getstate()[1][:-1] == words:
            return True
        left = _BLOCK - shadow.getstate()[1][-1]
        shadow.getrandbits(32 * (left + 1))  # into the next block
    return False


def _is_numpy_unseeded(module: ModuleType, began: Any) -> bool:  # noqa: ANN401
    now = module.mtrand._rand.get_state(legacy=False)
    if now.get("bit_generator") != "MT19937" or began.get("bit_generator") != "MT19937":
        return False
    shadow = module.RandomState()
    shadow.set_state(began)
    for _ in range(_MAX_BLOCKS):
        state = shadow.get_state(legacy=False)["state"]
        if (state["key"] == now["state"]["key"]).all():
            return True
        shadow._bit_generator.random_raw(_BLOCK - int(state["pos"]) + 1, output=False)
    return False
