"""Lines of ours for people, on the rank's own stderr.

The program may have closed its stderr, or put something in its place that raises: a lost line must stop nothing. Called
wherever the user should find something in a rank's log.
"""

import sys

from everstep.worker.process.signals import came_from_signal


def say(line: str) -> None:
    """Print a line. Never raises anything of its own; what a signal handler of the program raises meanwhile passes
    through."""
    stream = sys.stderr
    if stream is None:  # `print` would use stdout, which may be the program's output to another program
        return
    try:
        print(f"everstep: {line}", file=stream, flush=True)
    except Exception as error:
        if came_from_signal(error):
            raise
