"""When this rank entered its collectives, and how long its calls of them took: torch's flight record, for the rounds of
the fail-slow vote and the table of collectives.

Runs on the watch thread. The record goes into memory without a name, which the agent reads and drops; a rank that is
killed meanwhile leaves nothing behind. Making it holds the GIL for some microseconds per entry: the answer carries how
long, and the agent asks less often where that is too much. Raises only for a link that is gone.
"""

import array
import os
import socket
import time
from typing import TYPE_CHECKING

from everstep.wire import local
from everstep.worker.link import calls
from everstep.worker.link.groups import groups
from everstep.worker.link.record import flight_record

if TYPE_CHECKING:
    from everstep.wire.frames import Answer


_MAX_ERROR = 300


def answer(link: socket.socket, frame: local.Frame) -> None:
    """An `Answer` to `Entered` (docs/local-wire.md). Raises OSError."""
    number = frame.get("id")
    fds: list[int] = []
    try:
        began = time.thread_time()
        data = flight_record()
        took_s = time.thread_time() - began
        fds = [_keep(data), _keep(_words())]
        reply: Answer = {"entered": number, "took_s": took_s, "groups": groups(smaller_than_job=True)}
    except Exception as error:
        reply = {"entered": number, "why": f"{type(error).__name__}: {error}"[:_MAX_ERROR]}
    try:
        local.send(link, reply, tuple(fds))
    finally:
        for fd in fds:
            os.close(fd)


def _words() -> bytes:
    return array.array("q", [word for call in calls.newest() for word in call]).tobytes()


def _keep(data: bytes) -> int:
    fd = os.memfd_create("everstep-entered", os.MFD_CLOEXEC)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
    except OSError:
        os.close(fd)
        raise
    return fd
