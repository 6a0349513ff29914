"""`everstep run`: launch a training job as torchrun does, and keep it stepping."""

from collections.abc import Sequence

EXIT_INTERRUPTED = 130


def run(argv: Sequence[str]) -> int:
    """The whole command; the arguments are torchrun's and ours, so they are parsed by the launcher."""
    try:
        from everstep.launcher.run import launch

        return launch(argv)
    except KeyboardInterrupt:  # before there is anything to end
        return EXIT_INTERRUPTED
