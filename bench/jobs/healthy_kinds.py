"""The names of all healthy kinds, and which of them are special."""

from jobs.kind_names import marked

_MODULES = ("healthy_waits.py", "healthy_computes.py", "healthy_shapes.py")
ONCE = ("before-init", "late-rank", "after-init", "last-barrier", "at-exit")
"""Kinds that are irregular once in the life of a program."""

STATE_ONLY = ("announced-pause",)
"""Kinds that use what only a program with State can know."""

COMPUTING = (*marked("healthy_computes.py", ("act", "shape")), "loader-decodes", "accumulation", "computing")
"""Kinds in which somebody works while the others wait."""


def kinds_listed() -> list[str]:
    return [name for module in _MODULES for name in marked(module, ("act", "shape"))]
