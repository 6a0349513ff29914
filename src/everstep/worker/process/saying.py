"""Lines of ours for people, on the rank's own stderr.

The program may have closed its stderr, or put something in its place that raises: a line that nobody gets stops
nothing. Called wherever a rank says something that the user should read in its log.
"""

import sys

from everstep.worker.process.signals import came_from_signal


def say(line: str) -> None:
    """Never raises anything of its own; what a signal handler of the program raises meanwhile is the program's."""
    stream = sys.stderr
    if stream is None:  # `print` would take stdout, which may be the program's answer to somebody
        return
    try:
        print(f"everstep: {line}", file=stream, flush=True)
    except Exception as error:
        if came_from_signal(error):
            raise
