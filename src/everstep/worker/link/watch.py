"""One thread of ours in the training process: where do its process groups stand, and the flight record on request.

It writes two cells of the board every half second and sleeps otherwise; the training thread never waits for it. It
holds no reference to a group between two looks. Everything fails open: what it cannot see is unknown. A rank whose GIL
is held, or that is stopped, does not answer, and that is an answer as well.

Started by `Runtime.start_watch` when the first rendezvous is done. The agent asks over a socket of its own, because the
link is read by the main thread.
"""

import _thread
import atexit
import contextlib
import os
import select
import socket
import time
from typing import TYPE_CHECKING, Protocol

from everstep.linux.files import write_whole
from everstep.wire import local
from everstep.worker.link import calls, entered, sampler
from everstep.worker.link.record import flight_record
from everstep.worker.link.sequence import Sequence
from everstep.worker.process.board import BoardLine
from everstep.worker.process.naming import name_thread

if TYPE_CHECKING:
    from collections.abc import Callable

    from everstep.wire.frames import Answer
    from everstep.worker.link.hold import Hold


LOOK_S = 0.5
"""Shorter than a quarter of the shortest window, so that it hardly adds to the time to detect. A look takes some
microseconds per process group."""

THREAD = "everstep-watch"
"""Its name, to the kernel."""

END_LIMIT_S = 0.5
"""How long the end of a program waits for a call of ours into torch; those take microseconds."""

_MAX_ERROR = 300
_MIN_OBJECT = len("{}") + 1


class Keeping(Protocol):
    """The interface that the watch thread needs of a rank that takes part in the run."""

    save_now: "Callable[[float], tuple[int | None, str]] | None"
    hold: "Hold"


def start(board: BoardLine, link: socket.socket, keeping: Keeping | None = None) -> None:
    """Send the agent the means to have frames written without the GIL, and start the thread."""
    try:
        fd, signum = sampler.spill()
        local.send(link, {"spill": fd, "signal": signum}, (fd,))
    except Exception:
        pass  # one way less to a stack
    ending = _Ending(link)
    # Not one of `threading`'s: those are the program's to count, to list, to trace and to profile.
    _thread.start_new_thread(_run, (board, link, ending, keeping))
    # A thread that comes back from torch while the interpreter is being taken down would abort the process: so it ends
    # before. A fork has no such thread.
    pid = os.getpid()
    atexit.register(lambda: ending.end() if os.getpid() == pid else None)


class _Ending:
    """The end of the thread: when the program ends, it is woken up and waited for."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self.is_set = False
        self._over = _thread.allocate_lock()
        self._over.acquire()  # while the thread runs

    def note_over(self) -> None:
        self._over.release()

    def end(self) -> None:
        self.is_set = True
        with contextlib.suppress(OSError):  # closed already: then the thread has ended
            self._link.shutdown(socket.SHUT_RDWR)
        self._over.acquire(timeout=END_LIMIT_S)


def _run(board: BoardLine, link: socket.socket, ending: _Ending, keeping: Keeping | None) -> None:
    """Run until the agent closes its end, or the program ends."""
    name_thread(THREAD)
    sequence = Sequence(lambda: ending.is_set)
    try:
        poll = select.poll()
        poll.register(link, select.POLLIN)
        while not ending.is_set:
            is_asked = poll.poll(LOOK_S * 1000)
            if ending.is_set:
                return
            if is_asked:
                received = local.recv(link)
                if received is None:
                    return
                if received[0].get("do") == "entered":
                    entered.answer(link, received[0])
                else:
                    if received[0].get("do") == "save":
                        _look(board, sequence)  # it takes a while, in which it must not look deaf
                    local.send(link, _answer(received[0], keeping))
            _look(board, sequence)
    except Exception:
        return  # whatever it was, it is our fault: the program must not see it
    finally:
        board.forget_communication()  # communication is no longer observed: unknown, not silent
        ending.note_over()


def _look(board: BoardLine, sequence: Sequence) -> None:
    number = sequence.look()
    if number is None:
        board.forget_communication()
    else:
        board.set_communication(number, time.time())


def _answer(frame: local.Frame, keeping: Keeping | None) -> "Answer":
    """To any question but `Entered` (docs/local-wire.md)."""
    number = frame.get("id")
    if frame.get("do") == "hold":
        return {"held": number, "why": _hold(frame, keeping)}
    if frame.get("do") == "save":
        step, why = _save(frame, keeping)
        return {"saved": number, "step": step} if step is not None else {"saved": number, "why": why[:_MAX_ERROR]}
    if frame.get("do") == "stacks":
        try:
            return {"sampled": number, "threads": sampler.threads()}
        except Exception as error:
            return {"sampled": number, "why": f"{type(error).__name__}: {error}"[:_MAX_ERROR]}
    try:
        _dump(str(frame["path"]))
    except Exception as error:
        return {"dumped": number, "why": f"{type(error).__name__}: {error}"[:_MAX_ERROR]}
    return {"dumped": number}


def _save(frame: local.Frame, keeping: Keeping | None) -> tuple[int | None, str]:
    """Complete the snapshot of the last completed step; other questions wait meanwhile."""
    try:
        if keeping is None or keeping.save_now is None:
            return None, "this rank keeps no snapshots"
        return keeping.save_now(float(frame["limit_s"]))
    except Exception as error:
        return None, f"{type(error).__name__}: {error}"


def _hold(frame: local.Frame, keeping: Keeping | None) -> str:
    """No step follows that one; without one, the next step may begin. Empty, or why not."""
    try:
        step = frame.get("step")
        if keeping is None:
            return "it takes no part in the run"
        if step is None:
            keeping.hold.let_go()
            return ""
        return keeping.hold.ask(int(step), float(frame["limit_s"]))
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:_MAX_ERROR]


def _dump(path: str) -> None:
    write_whole(path, _with_calls(flight_record()))


def _with_calls(record: bytes) -> bytes:
    """The record, which is an object of JSON, and how long the newest calls took: thread, begin, end."""
    record = record.rstrip()
    newest = [list(call) for call in calls.newest()]
    if not newest or not record.endswith(b"}") or len(record) < _MIN_OBJECT:
        return record
    return record[:-1] + f', "everstep_calls": {newest}}}'.encode()
