"""The template process: one single-threaded interpreter with everything imported, which forks parked workers.

Started and told by the agent over one socket; it ends when that closes. It never imports the user's own files, never
runs a collective, and watches itself: a thread or an opened accelerator would make its forks unsafe, so it says so
and ends. Each parked worker is a grandchild that the agent adopts.
"""

import gc
import importlib
import os
import socket
import sys
import threading
import time
from pathlib import Path

from everstep.wire import local
from everstep.worker import life
from everstep.worker import main as worker_main

_DEVICES = ("/dev/nvidia", "/dev/kfd", "/dev/dri", "/dev/habanalabs", "/dev/accel", "/dev/davinci")


class Spoiled(Exception):  # noqa: N818 - a state, told to the agent
    """Importing a module made this process unfit for forking."""

    def __init__(self, module: str, why: str) -> None:
        super().__init__(why)
        self.module = module
        self.why = why


def main() -> None:
    """Serve the agent. In a parked worker: become the worker instead, and return when its program has ended."""
    sock = socket.socket(fileno=int(os.environ.pop("EVERSTEP_TEMPLATE_FD")))
    agent = int(os.environ.pop("EVERSTEP_AGENT_PID"))
    sock.set_inheritable(False)
    if not life.die_with_parent(agent):
        os._exit(0)
    link = _serve(sock, agent)
    if link is None:
        return
    sock.close()
    worker_main.serve(link, frozenset(sys.modules))


def _serve(sock: socket.socket, agent: int) -> socket.socket | None:
    """Do what the agent asks until it is over (None), or until this is a parked worker (its link)."""
    while True:
        received = local.recv(sock)
        if received is None:
            return None
        frame, _ = received
        if frame.get("do") == "import":
            try:
                _import_all(sock, [str(name) for name in frame.get("modules", ())])
            except Spoiled as spoiled:
                local.send(sock, {"is": "spoiled", "module": spoiled.module, "why": spoiled.why})
                return None
        elif frame.get("do") == "park":
            for _ in range(int(frame.get("count", 0))):
                link = _park(sock, agent)
                if link is not None:
                    return link
        elif frame.get("do") == "end":
            return None


def _import_all(sock: socket.socket, modules: list[str]) -> None:
    """Import, check after each top-level package, freeze. A module that is not there is skipped: lists get old."""
    began = time.monotonic()
    why = unfit()
    if why:
        raise Spoiled("", why)
    failed: dict[str, str] = {}
    for name in modules:
        if name in sys.modules:
            continue
        if "." not in name:
            local.send(sock, {"is": "importing", "module": name})  # if this kills us, the agent knows which
        try:
            importlib.import_module(name)
        except Exception as error:
            failed[name] = f"{type(error).__name__}: {error}"[:200]
        why = unfit()
        if why:
            raise Spoiled(name, why)
    gc.collect()
    gc.freeze()  # a fork's first collection must not touch, and so copy, everything that was imported
    took_s = time.monotonic() - began
    local.send(sock, {"is": "ready", "num_modules": len(sys.modules), "took_s": took_s, "failed": failed})


def unfit() -> str:
    """Why this process must not be forked; empty if it may."""
    num_threads = len(os.listdir("/proc/self/task"))  # noqa: PTH208 - called after each of thousands of imports
    if num_threads != 1:
        names = ", ".join(t.name for t in threading.enumerate() if t is not threading.main_thread())
        return f"the process has {num_threads} threads" + (f" ({names})" if names else "")
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    if cuda is not None and hasattr(cuda, "is_initialized") and cuda.is_initialized():
        return "CUDA is initialised"
    return _open_device()


def _open_device() -> str:
    for fd in Path("/proc/self/fd").iterdir():
        try:
            target = os.readlink(fd)  # noqa: PTH115
        except OSError:
            continue
        if target.startswith(_DEVICES):
            return f"{target} is open"
    return ""


def _park(sock: socket.socket, agent: int) -> socket.socket | None:
    """Fork a parked worker. None in the template; the worker's link in the worker."""
    theirs, ours = socket.socketpair()
    between = os.fork()
    if between == 0:
        if os.fork() != 0:
            os._exit(0)
        theirs.close()
        _settle(agent)
        ours.sendall(os.getpid().to_bytes(4, "little"))
        return ours
    os.waitpid(between, 0)
    ours.close()
    with theirs:
        # The grandchild says its pid itself, through its link: the process between us is gone.
        pid = int.from_bytes(theirs.recv(4), "little")  # 0: it did not get that far
        local.send(sock, {"is": "parked", "pid": pid}, (theirs.fileno(),))
    return None


def _settle(agent: int) -> None:
    """Become an independent process that belongs to the agent."""
    os.setsid()
    if not life.await_adoption(agent) or not life.die_with_parent(agent):
        os._exit(0)
    life.reset_signals()
