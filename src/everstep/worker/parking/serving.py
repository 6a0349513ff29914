"""What a twin does while it waits: it forks the process that goes on, or imports ahead what its rank imported later.

Runs in the twin alone, so it may import what it needs.
"""

import gc
import importlib
import os
import socket
import sys
import time
from typing import Any

from everstep.wire import local
from everstep.worker.parking import fitness
from everstep.worker.parking.descriptors import raise_fd
from everstep.worker.parking.twin import Ended, is_adopted


def serve(process: Any) -> None:  # noqa: ANN401 - begin.Process
    """Returns in a process that goes on, which has its assignment. Raises Ended."""
    sock = socket.socket(fileno=process.link_fd)
    gc.freeze()  # a fork's first collection must not copy everything; to collect now would, beside ranks that start
    try:
        local.send(sock, {"is": "here", "pid": os.getpid(), "num_modules": len(sys.modules)})
        while True:
            received = local.recv(sock)
            if received is None:
                raise Ended
            frame, fds = received
            for fd in fds:
                os.close(fd)
            if frame.get("do") == "import":
                answer = _import(process, [str(name) for name in frame.get("modules", ())])
                local.send(sock, _compare(answer, frame.get("changed") or {}))
            elif frame.get("do") in ("wake", "split"):
                why = stale(process, frame) if frame["do"] == "wake" else ""
                if why:
                    local.send(sock, {"is": "stale", "why": why})
                    continue
                link = _fork(process, sock, str(frame["do"]))
                if link is None:
                    continue
                sock.detach()
                if frame["do"] == "split":
                    sock = link
                    local.send(sock, {"is": "here", "pid": os.getpid(), "num_modules": len(sys.modules)})
                    continue
                gc.unfreeze()
                _go_on(process, link)
                return
    except (OSError, local.FrameError) as error:
        raise Ended from error


def stale(process: Any, frame: dict[str, Any]) -> str:  # noqa: ANN401
    """Why a new start would go another way than this process can; empty if it would not."""
    env = frame.get("env") or {}
    for name in sorted(process.asked):
        if process.env.get(name) != env.get(name):
            return f"the program has read {name}, which is {env.get(name)!r} now"
    return str(process.reads.changed())


def _fork(process: Any, sock: socket.socket, what: str) -> socket.socket | None:  # noqa: ANN401
    """None in this process; its link in the one that goes on."""
    theirs, ours = socket.socketpair()
    between = os.fork()
    if between == 0:
        between = os.getpid()
        if os.fork() != 0:
            os._exit(0)
        theirs.close()
        os.close(process.link_fd)
        process.link_fd = raise_fd(ours.detach())
        process.closing = {process.link_fd}
        process.own_fds.add(process.link_fd)
        os.setsid()
        if not is_adopted(process.agent, between):
            os._exit(0)
        link = socket.socket(fileno=process.link_fd)
        link.sendall(os.getpid().to_bytes(4, "little"))
        return link
    os.waitpid(between, 0)
    ours.close()
    with theirs:
        pid = int.from_bytes(theirs.recv(4), "little")  # 0: it did not get that far
        local.send(sock, {"is": "awake" if what == "wake" else "split", "pid": pid}, (theirs.fileno(),))
    return None


def _go_on(process: Any, link: socket.socket) -> None:  # noqa: ANN401
    """Wait for the assignment and be that rank."""
    received = local.recv(link)
    link.detach()
    if received is None:
        raise Ended
    frame, fds = received
    for number in range(3 if frame.get("streams") else 0):
        given = fds.pop(0)
        os.dup2(given, number, inheritable=True)
        os.close(given)
    process.pid = os.getpid()
    process.become(frame, [raise_fd(fd) for fd in fds])


def _compare(answer: dict[str, Any], changed: dict[str, str | None]) -> dict[str, Any]:
    """What the rank has imported it has imported with these variables, which imports may set themselves."""
    for name, value in changed.items():
        if answer["is"] == "ready" and os.environ.get(name) != value:
            return {"is": "spoiled", "module": "", "why": f"the program changes {name} before it imports the rest"}
    return answer


def _import(process: Any, modules: list[str]) -> dict[str, Any]:  # noqa: ANN401
    """Import, look after each whether this process can still be forked. What fails is left to the program.

    Nothing is collected meanwhile: hardly any of it is garbage, and going through it takes a sixth of the time.
    """
    thresholds = gc.get_threshold()
    gc.set_threshold(0, *thresholds[1:])
    try:
        return _import_all(process, modules)
    finally:
        if gc.get_threshold()[0] == 0:  # no module has set it
            gc.set_threshold(*thresholds)


def _import_all(process: Any, modules: list[str]) -> dict[str, Any]:  # noqa: ANN401
    began, failed = time.monotonic(), {}
    for name in modules:
        if name in sys.modules:
            continue
        try:
            importlib.import_module(name)
        except BaseException as error:
            failed[name] = f"{type(error).__name__}: {error}"[:200]
        why = fitness.why_unfit(process.safe_threads, process.own_fds)
        if why:
            return {"is": "spoiled", "module": name, "why": why}
    gc.collect()
    gc.freeze()
    took_s = time.monotonic() - began
    return {"is": "ready", "num_modules": len(sys.modules), "took_s": took_s, "failed": failed}
