"""Makes processes: interpreters of ours with one end of a socket pair, in a session of their own.

posix_spawn, because it neither copies the agent nor waits for the child; everything else that a worker needs (folder,
output, environment) it sets up itself once it has its assignment.
"""

import os
import socket
import sys
from collections.abc import Mapping

from everstep.errors import EverstepError

_CHILD_FD = 3
_BOOT = "import sys; sys.path[:1] = []; from {module} import main; main()"
"""`-c` puts the current folder on the path; it goes before anything is imported, so that a file of the user's named
like a module of ours or of the standard library is not taken for it. `-m` would leave no moment to do so."""


class SpawnError(EverstepError):
    """The process could not be made."""


def spawn_worker(
    env: Mapping[str, str], python: str, streams: tuple[int, int, int] | None = None
) -> tuple[int, socket.socket]:
    """A fresh worker and our end of its link. `streams`: what its descriptors 0, 1 and 2 are (agent/streams.py); None:
    no input, and the agent's output until its assignment says. Raises SpawnError."""
    return _spawn("everstep.worker.main", "EVERSTEP_LINK_FD", env, python, streams=streams)


def spawn_template(env: Mapping[str, str], output: str) -> tuple[int, socket.socket]:
    """The template process and our end of its socket. Raises SpawnError."""
    return _spawn("everstep.agent.template_main", "EVERSTEP_TEMPLATE_FD", env, sys.executable, output)


def _spawn(
    module: str,
    fd_variable: str,
    env: Mapping[str, str],
    python: str,
    output: str = "",
    streams: tuple[int, int, int] | None = None,
) -> tuple[int, socket.socket]:
    ours, theirs = socket.socketpair()
    actions: list[tuple[object, ...]]
    if streams is None:
        actions = [(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)]
    else:
        actions = [(os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate(streams)]
    actions.append((os.POSIX_SPAWN_DUP2, theirs.fileno(), _CHILD_FD))  # clears close-on-exec if it is the same number
    if output:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        actions += [(os.POSIX_SPAWN_OPEN, 1, output, flags, 0o644), (os.POSIX_SPAWN_DUP2, 1, 2)]
    environment = {**env, fd_variable: str(_CHILD_FD), "EVERSTEP_AGENT_PID": str(os.getpid())}
    command = [python, "-u", "-c", _BOOT.format(module=module)]
    with theirs:
        try:
            pid = os.posix_spawnp(python, command, environment, file_actions=actions, setsid=True, setsigmask=())
        except OSError as error:
            ours.close()
            raise SpawnError(f"cannot start {python}: {error.strerror}") from error
    return pid, ours
