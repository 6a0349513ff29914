"""Everstep keeps large PyTorch training jobs stepping.

`import everstep` is cheap and imports no torch; a name is loaded when it is first used.
"""

from typing import TYPE_CHECKING

from everstep.version import __version__

if TYPE_CHECKING:
    from everstep.worker.state import State

__all__ = ["State", "__version__"]


def __getattr__(name: str) -> object:
    if name == "State":
        from everstep.worker.state import State

        return State
    raise AttributeError(f"module 'everstep' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
