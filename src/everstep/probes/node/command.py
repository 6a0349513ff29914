"""Output of a vendor's tool, within a time limit.

Called in threads of the senses, so the tool is out of sight of the agent's reaper, which neither ends it with what dead
ranks left behind nor takes its exit status. Of that only a signal counts: the output is then cut anywhere. Tools exit
with other codes than 0 for what they found, and say it in their output.
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
    """Standard output. Raises UnsupportedError when the tool is not there, is not allowed or does not end
    by itself."""
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
    """With everything that it started; its output ends then."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except OSError:
        return
