"""A job whose batch script was lost with its node: Slurm waits for the end of that script, and keeps the nodes.

The host that has the controller by then ends the job, after everything else. Called by `launcher.joining.joining`,
after the event loop.
"""

import socket
import subprocess
import time
from collections.abc import Mapping

from everstep.engines.slurm.commands import LIMIT_S, parse_fields
from everstep.fabric.readers.hostlist import expand
from everstep.fabric.topology.values import FabricError

ASK_FOR_S = 60.0
"""How long to keep trying: slurmctld may be away, and nothing else ends the job."""

AGAIN_S = 2.0
ANSWER_S = 3.0


def end_job(job: str, environ: Mapping[str, str]) -> str:
    """What was done, for a person; empty: the job ends by itself."""
    ends_at = time.monotonic() + ASK_FOR_S
    while True:
        try:
            if not _is_orphaned(parse_fields(_call("scontrol", "show", "job", "-o", job)), environ):
                return ""
            _call("scancel", job)
            return f"the node with the batch script of Slurm job {job} was lost, so the job is ended here (scancel)"
        except (OSError, subprocess.SubprocessError, FabricError) as error:
            if time.monotonic() > ends_at:
                return f"scancel {job} ends the job, if its batch script was lost: Slurm does not say so ({error})"
        time.sleep(AGAIN_S)


def _is_orphaned(fields: Mapping[str, str], environ: Mapping[str, str]) -> bool:
    """Whether Slurm reports that the script's node has left the job, or nothing answers there. A user who may set no
    node down waits for the first for SlurmdTimeout."""
    host = fields.get("BatchHost", "")
    if fields.get("BatchFlag") != "1" or not host:
        return False
    return host not in expand(fields.get("NodeList", ""), "scontrol") or _is_silent(_srun(environ))


def _srun(environ: Mapping[str, str]) -> tuple[str, int] | None:
    """Where the srun listens that started this step; it runs beside the batch script."""
    host = environ.get("SLURM_SRUN_COMM_HOST") or environ.get("SLURM_LAUNCH_NODE_IPADDR", "")
    port = environ.get("SLURM_SRUN_COMM_PORT", "")
    return (host, int(port)) if host and port.isdecimal() and 0 < int(port) < 65536 else None


def _is_silent(place: tuple[str, int] | None) -> bool:
    """A machine that refuses a connection is there, and so is the script."""
    if place is None:
        return False
    try:
        socket.create_connection(place, ANSWER_S).close()
    except ConnectionRefusedError:
        return False
    except OSError:
        return True
    return False


def _call(*command: str) -> str:
    return subprocess.run(
        command, capture_output=True, timeout=LIMIT_S, check=True, text=True, errors="replace", stdin=subprocess.DEVNULL
    ).stdout
