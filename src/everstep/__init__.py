"""Everstep keeps large PyTorch training jobs stepping.

`import everstep` is cheap and imports no torch; a name is loaded when it is first used.
"""

from everstep.version import __version__

TYPE_CHECKING = False  # `typing` would be imported into every rank before its program
if TYPE_CHECKING:
    from everstep.worker.api import busy, paused, phase, step
    from everstep.worker.size import keep_size, world
    from everstep.worker.snapshots.state import State

__all__ = ["State", "__version__", "busy", "keep_size", "paused", "phase", "step", "world"]

_HOMES = {
    "State": "everstep.worker.snapshots.state",
    "busy": "everstep.worker.api",
    "keep_size": "everstep.worker.size",
    "paused": "everstep.worker.api",
    "phase": "everstep.worker.api",
    "step": "everstep.worker.api",
    "world": "everstep.worker.size",
}


def __getattr__(name: str) -> object:
    if name in _HOMES:
        import importlib

        value: object = getattr(importlib.import_module(_HOMES[name]), name)
        globals()[name] = value  # found at once the next time: `step` is called in every step
        return value
    raise AttributeError(f"module 'everstep' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
