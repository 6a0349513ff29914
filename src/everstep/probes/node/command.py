"""Output of a vendor's tool, within a time limit.

The senses call it in their threads, so the agent's reaper does not know the tool: the reaper neither kills it with
leftovers of dead ranks nor takes its exit status. Only a signal counts as a failure, because the output may then be cut
anywhere. Tools exit with codes other than 0 for their findings, and print these.
"""

import os
import shutil
import signal
import subprocess
from collections.abc import Sequence

from everstep.probes.sense import UnsupportedError

LIMIT_S = 10.0
MAX_OUTPUT_BYTES = 4 << 20


def output_of(command: Sequence[str], limit_s: float = LIMIT_S) -> bytes:
    """Standard output, at most `MAX_OUTPUT_BYTES`. Raises UnsupportedError if the tool is missing, is not allowed or
    does not end in time."""
    path = shutil.which(command[0])
    if path is None:
        raise UnsupportedError(f"no {command[0]} on this node")
    try:
        process = subprocess.Popen(
            [path, *command[1:]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as error:
        raise UnsupportedError(f"{command[0]}: {error.strerror}") from error
    with process:
        try:
            output, _ = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            _end(process)
            raise UnsupportedError(f"{command[0]} did not end within {limit_s:g} s") from None
    if process.returncode < 0:
        raise UnsupportedError(f"{command[0]} was killed by signal {-process.returncode}")
    return output[:MAX_OUTPUT_BYTES]


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Kill the tool and everything that it started; then its output ends."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except OSError:
        return
