"""Makes processes: interpreters with one end of a socket pair, in a session of their own.

posix_spawn, because it neither copies the agent nor waits for the child. A program that an interpreter can run is
started by exactly torchrun's command line; what makes it one of ours comes by PYTHONPATH (`worker/boot`) and is gone
before its first line. All else (commands, examinations) is run by `worker.start.main`, which goes by its assignment.
"""

import os
import signal
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

from everstep.errors import EverstepError

_CHILD_FD = 3
_BOOT = "import sys; sys.path[:1] = []; from everstep.worker.start.main import main; main()"
"""`-c` puts the current folder on the path; it goes before anything is imported, so that a file of the user's named
like a module of ours or of the standard library is not taken for it. `-m` would leave no moment to do so."""

BOOT_FOLDER = Path(__file__).parents[2] / "worker" / "boot"


Streams = tuple[int, int, int]


class SpawnError(EverstepError):
    """The process could not be made."""


def spawn_worker(env: Mapping[str, str], python: str, streams: Streams | None = None) -> tuple[int, socket.socket]:
    """A process that waits for its assignment, and our end of its link. `streams`: what its descriptors 0, 1 and 2 are
    (agent/streams/streams.py); None: no input, and the agent's output until its assignment says. Raises SpawnError."""
    return _spawn([python, "-u", "-c", _BOOT], env, streams)


def spawn_program(
    command: Sequence[str], env: Mapping[str, str], streams: Streams, *, is_spare: bool = False
) -> tuple[int, socket.socket]:
    """A program that runs natively, and our end of its link. `env`: the whole environment that it is to see. It begins
    in the agent's folder. Raises SpawnError."""
    given = {**env, "PYTHONPATH": os.pathsep.join(filter(None, (str(BOOT_FOLDER), env.get("PYTHONPATH", ""))))}
    if "PYTHONPATH" in env:
        given["EVERSTEP_PYTHONPATH"] = env["PYTHONPATH"]
    if is_spare:
        given["EVERSTEP_SPARE"] = "1"
    return _spawn(command, given, streams)


def _spawn(command: Sequence[str], env: Mapping[str, str], streams: Streams | None) -> tuple[int, socket.socket]:
    ours, theirs = socket.socketpair()
    actions: list[tuple[object, ...]]
    if streams is None:
        actions = [(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)]
    else:
        actions = [(os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate(streams)]
    actions.append((os.POSIX_SPAWN_DUP2, theirs.fileno(), _CHILD_FD))  # clears close-on-exec if it is the same number
    environment = {**env, "EVERSTEP_LINK_FD": str(_CHILD_FD), "EVERSTEP_AGENT_PID": str(os.getpid())}
    with theirs:
        try:
            pid = os.posix_spawnp(
                command[0],
                list(command),
                environment,
                file_actions=actions,
                setsid=True,
                setsigmask=(),
                setsigdef=(signal.SIGHUP,),  # which the agent ignores
            )
        except OSError as error:
            ours.close()
            raise SpawnError(f"cannot start {command[0]}: {error.strerror}") from error
    return pid, ours
