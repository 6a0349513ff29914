"""`everstep run`: launch a training job as torchrun does, and keep it stepping.

The arguments are torchrun's and ours, so the launcher parses them itself.
"""

from collections.abc import Sequence


def run(argv: Sequence[str]) -> int:
    """The run's exit code (docs/run.md)."""
    from everstep.launcher.run import launch

    return launch(argv)
