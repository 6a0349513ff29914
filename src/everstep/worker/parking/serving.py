"""What a twin does while it waits: it forks the process that continues, or imports ahead what its rank imported later.

Runs in the twin alone, so it may import what it needs.
"""

import contextlib
import gc
import importlib
import os
import socket
import sys
import time
from typing import TYPE_CHECKING, Any

from everstep.wire import local
from everstep.worker.parking import device_ahead, fitness
from everstep.worker.parking.adoption import Ended, is_adopted
from everstep.worker.parking.descriptors import raise_fd

if TYPE_CHECKING:
    from everstep.wire.frames import TwinSays

OURS = ("everstep.worker.link.watch", "everstep.worker.digests.digesting")
"""Imported by a rank at its rendezvous and before its first optimizer step."""


def serve(process: Any) -> None:  # noqa: ANN401 - begin.Process
    """Serve the agent. Returns in a process that continues, which has its assignment. Raises Ended."""
    serving = _Serving(process)
    try:
        serving.say_here()
        while True:
            received = local.recv(serving.sock)
            if received is None:
                raise Ended
            frame, fds = received
            for fd in fds:
                os.close(fd)
            link = serving.answer(frame)
            if link is not None:
                _go_on(process, link)
                return
    except (OSError, local.FrameError) as error:
        raise Ended from error


class _Serving:
    """The socket to the agent, and the process that was forked ahead: it continues at the next `wake`, which then waits
    for no copy of this process's memory."""

    def __init__(self, process: Any) -> None:  # noqa: ANN401
        self.sock = socket.socket(fileno=process.link_fd)
        self._process = process
        self._ahead: Forked | None = None

    def say_here(self) -> None:
        local.send(self.sock, {"is": "here", "pid": os.getpid(), "num_modules": len(sys.modules)})

    def answer(self, frame: dict[str, Any]) -> socket.socket | None:
        """Do what is asked. Returns a link in a process that continues: its assignment comes through it."""
        what = frame.get("do")
        if what == "import":
            answer = _import(self._process, [str(name) for name in frame.get("modules", ())])
            local.send(self.sock, _compare(answer, frame.get("changed") or {}))
        elif what == "wake" and (why := stale(self._process, frame)):
            local.send(self.sock, {"is": "stale", "why": why})
        elif what == "wake":
            return self._wake()
        elif what == "split":
            self._split()
        elif what == "ahead":
            return self._fork_ahead()
        elif what == "adopt":
            self._be_adopted(int(frame["agent"]))
        return None

    def _be_adopted(self, agent: int) -> None:
        """The agent was killed, and with it what was forked ahead. The next one is this process's parent."""
        self._process.agent = agent
        ready, self._ahead = self._ahead, None
        if ready is not None:
            ready.link.close()
        self.say_here()

    def _wake(self) -> socket.socket | None:
        ready, self._ahead = self._ahead, None
        if ready is not None and ready.is_there():
            ready.hand_to(self.sock, "awake")
            return None
        forked = self._fork(ready)
        if isinstance(forked, socket.socket):
            return forked
        forked.hand_to(self.sock, "awake")
        return None

    def _fork_ahead(self) -> socket.socket | None:
        _import_ours()
        forked = self._fork(self._ahead)
        if isinstance(forked, socket.socket):
            with contextlib.suppress(Exception):  # the program meets it where it uses the device itself
                device_ahead.begin(self._process.env, has_torch=self._process.has_torch)
            return forked
        self._ahead = forked
        local.send(self.sock, {"is": "ahead", "pid": forked.pid})
        return None

    def _split(self) -> None:
        """Into two twins."""
        forked = self._fork(self._ahead)
        if isinstance(forked, socket.socket):
            self.sock, self._ahead = forked, None
            self.say_here()
        else:
            forked.hand_to(self.sock, "split")

    def _fork(self, ahead: "Forked | None") -> "Forked | socket.socket":
        """The new process, seen from this one; in the new one its link. `ahead` is another's child and ends with it."""
        forked = _fork(self._process)
        if isinstance(forked, socket.socket):
            self.sock.detach()
            if ahead is not None:
                ahead.link.close()
        return forked


def stale(process: Any, frame: dict[str, Any]) -> str:  # noqa: ANN401
    """Why a new start would go another way than this process can; empty if it would not."""
    env = frame.get("env") or {}
    for name in sorted(process.asked):
        if process.env.get(name) != env.get(name):
            return f"the program has read {name}, which is {env.get(name)!r} now"
    return str(process.reads.changed())


class Forked:
    """A process that continues from this one, seen from here: it waits for its assignment."""

    def __init__(self, pid: int, link: socket.socket) -> None:
        self.pid = pid  # 0: it did not get that far
        self.link = link

    def is_there(self) -> bool:
        """Whether its socket is open: it sends nothing until it gets its assignment."""
        try:
            return bool(self.pid) and self.link.recv(1, socket.MSG_DONTWAIT | socket.MSG_PEEK) != b""
        except BlockingIOError:
            return True
        except OSError:
            return False

    def hand_to(self, agent: socket.socket, answer: str) -> None:
        with self.link:
            local.send(agent, {"is": answer, "pid": self.pid}, (self.link.fileno(),))


def _fork(process: Any) -> Forked | socket.socket:  # noqa: ANN401
    """The process in this one; its link in itself."""
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
    return Forked(int.from_bytes(theirs.recv(4), "little"), theirs)


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


def _import_ours() -> None:
    """What of ours each rank imports on its way to the first step, in a quiet moment and once."""
    torch = sys.modules.get("torch")
    if torch is None or getattr(torch.__spec__, "_initializing", True):
        return  # it, or what it imports, would be loaded in another order than by the program
    with contextlib.suppress(Exception):  # the rank says what is wrong with it
        for name in OURS:
            importlib.import_module(name)


def _compare(answer: "TwinSays", changed: dict[str, str | None]) -> "TwinSays":
    """What the rank has imported it has imported with these variables, which imports may set themselves."""
    for name, value in changed.items():
        if answer["is"] == "ready" and os.environ.get(name) != value:
            return {"is": "spoiled", "module": "", "why": f"the program changes {name} before it imports the rest"}
    return answer


def _import(process: Any, modules: list[str]) -> "TwinSays":  # noqa: ANN401
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


def _import_all(process: Any, modules: list[str]) -> "TwinSays":  # noqa: ANN401
    began, failed = time.monotonic(), {}
    for name in modules:
        if name in sys.modules:
            continue
        try:
            importlib.import_module(name)
        except BaseException as error:
            failed[name] = f"{type(error).__name__}: {error}"[:200]
        if fitness.bad_threads(process.safe_threads):
            fitness.end_prepared_threads()
        why = fitness.why_unfit(process.safe_threads, process.own_fds)
        if why:
            return {"is": "spoiled", "module": name, "why": why}
    gc.collect()
    process.frozen.freeze()
    took_s = time.monotonic() - began
    return {"is": "ready", "num_modules": len(sys.modules), "took_s": took_s, "failed": failed}
