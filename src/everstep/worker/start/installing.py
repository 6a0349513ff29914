"""Makes a process that runs a program natively one of ours: its runtime, its hooks, the handlers of drills.

Called when torch has been imported, not before: until then everything is as the interpreter made it. In a process that
continues from a twin the runtime is the twin's own object, filled anew, so that references to it stay valid.
"""

import faulthandler
import os
import socket
from typing import TYPE_CHECKING, Any, cast

from everstep.linux import parent
from everstep.wire import local
from everstep.worker.drills import drill
from everstep.worker.hooks import hooks
from everstep.worker.link import assignment as assignments
from everstep.worker.link.runtime import Runtime, installed
from everstep.worker.link.runtime import install as make_current
from everstep.worker.parking.descriptors import raise_fd
from everstep.worker.process.board import BoardLine, Phase
from everstep.worker.start import ending

if TYPE_CHECKING:
    from everstep.wire.frames import Assign

ASSIGNMENT_S = 30.0


def install(process: Any, assignment: "tuple[Assign, list[int]] | None") -> None:  # noqa: ANN401 - begin.Process
    """`assignment`: what the process has received already; None: it waits on the link. Raises OSError,
    assignment.AssignmentError; the program then runs without us."""
    link = socket.socket(fileno=process.link_fd)
    try:
        frame, fds = assignment or _await(link)
        process.own_fds |= set(fds)
        process.closing |= set(fds)
        job = assignments.parse(frame)
    except Exception:
        link.detach()  # its number still means the link
        raise
    before = installed()
    process.closing.discard(fds[0])  # the board's is closed when it has been mapped
    runtime = fill(before, link, frame, fds, job.local_rank)
    runtime.process = process
    process.early = [str(name) for name in frame.get("early") or ()]
    process.parks_once = bool(frame.get("parks_once"))
    make_current(runtime)
    parent.die_with_parent(process.agent)
    if before is not None:
        drill.born_with(runtime)
    else:
        if not faulthandler.is_enabled():
            faulthandler.enable()  # a crash in native code leaves Python's stacks on stderr
        drill.install(runtime)
        hooks.install(runtime)
        ending.install()
    runtime.tell({"listens": os.getpid()})


def _await(link: socket.socket) -> "tuple[Assign, list[int]]":
    link.settimeout(ASSIGNMENT_S)
    received = local.recv(link)
    link.settimeout(None)
    if received is None:
        raise OSError("the agent is gone")
    return cast("Assign", received[0]), [raise_fd(fd) for fd in received[1]]


def fill(runtime: Runtime | None, link: socket.socket, frame: "Assign", fds: list[int], local_rank: int) -> Runtime:
    """A runtime for this assignment, or the one that is there with another assignment."""
    watch_link = socket.socket(fileno=fds.pop()) if frame.get("watch") else None
    former_world, ranks = assignments.former(frame)
    former = dict(zip(ranks, fds[len(fds) - len(ranks) :], strict=True))  # they come last, in this order
    del fds[len(fds) - len(ranks) :]
    siblings = {}
    for rank, count in reversed(assignments.siblings(frame)):  # before them
        siblings[rank] = fds[len(fds) - count :]
        del fds[len(fds) - count :]
    if runtime is None:
        runtime = Runtime(link, frame, BoardLine(fds[0], local_rank), fds[1:])
    else:
        runtime.begin_again(link, frame, fds[0], fds[1:])
    os.close(fds[0])
    runtime.board.set_pid(os.getpid())
    if frame.get("launch") in ("script", "module"):
        runtime.board.set_phase(Phase.ENTERED)
    runtime.siblings = siblings
    runtime.former_world, runtime.former = former_world, former
    runtime.watch_link = watch_link
    parent.allow_look_of(os.getppid())
    return runtime
