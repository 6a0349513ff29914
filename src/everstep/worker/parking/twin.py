"""The twin: a fork of a rank that waits, and from which the rank continues when it has to come back.

It belongs to the agent (a double fork, the agent adopts it), holds no socket, pipe or stream of the rank, and ends when
its own socket closes. Each time it is woken it forks the process that continues, and waits again.
"""

from __future__ import annotations

import os
import sys

from everstep.worker.parking import fitness, repair
from everstep.worker.parking.adoption import Ended, is_adopted
from everstep.worker.parking.descriptors import raise_fd

TYPE_CHECKING = False  # `typing` would be imported before the program imports it
if TYPE_CHECKING:
    from typing import Any

_SIGCHLD = 17


def leave(process: Any, stage: str) -> bool:  # noqa: ANN401 - begin.Process
    """Fork a twin and report it to the agent. False in the rank; True in the process that continues from the twin,
    which has a new assignment then."""
    import _socket

    process.draws.keep()
    before = repair.keep()
    positions = fitness.offsets(process.own_fds)
    told = {"stage": stage, "out": _size(1), "err": _size(2), "reads": len(process.reads), "last": int(process.is_over)}
    theirs, ours = _socket.socketpair()
    handler = _no_handler()
    process.frozen.freeze()
    between = os.fork()
    if between == 0:
        between = os.getpid()
        if os.fork() != 0:
            os._exit(0)
        theirs.close()
        process.frozen.wait()
        _become_twin(process, ours.detach(), between)
        _serve(process)
        process.frozen.begin()
        repair.restore(before)
        for fd, position in positions.items():
            _seek(fd, position)
        return True
    os.waitpid(between, 0)
    process.frozen.begin()
    _set_handler(handler)
    ours.close()
    _tell(process.link_fd, told, theirs)
    return False


def serve_as_spare(process: Any) -> None:  # noqa: ANN401
    """This process is the twin: it never continues itself. Returns in its forks."""
    process.draws.keep()
    before = repair.keep()
    process.frozen.freeze()
    _serve(process)
    process.frozen.begin()
    repair.restore(before)


def _become_twin(process: Any, fd: int, between: int) -> None:  # noqa: ANN401
    os.setsid()
    for own in process.closing:
        _close(own)
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for number in range(3):  # above all it must not hold a terminal or the end of a pipe
        os.dup2(null, number)
    os.close(null)
    fd = raise_fd(fd)
    process.link_fd, process.closing = fd, {fd}
    process.own_fds.add(fd)
    if not is_adopted(process.agent, between):
        os._exit(0)


def _serve(process: Any) -> None:  # noqa: ANN401
    """Wait for requests of the agent. Returns in a process that continues."""
    before = set(sys.modules)
    try:
        from everstep.worker.parking import serving

        serving.serve(process)
    except Ended:
        os._exit(0)
    except Exception as error:
        say(process.link_fd, {"is": "over", "why": f"{type(error).__name__}: {error}"})
        os._exit(1)
    repair.forget(before)


def _tell(link_fd: int, told: dict[str, Any], theirs: Any) -> None:  # noqa: ANN401
    """With the agent's end of the twin's socket."""
    import _socket

    link = _socket.socket(fileno=link_fd)
    try:
        rights = theirs.fileno().to_bytes(4, sys.byteorder)
        link.sendmsg([_frame('"twin":{' + _members(told) + "}")], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, rights)])
    finally:
        link.detach()
        theirs.close()


def say(link_fd: int, told: dict[str, Any]) -> None:
    """Without a descriptor. Raises OSError."""
    os.write(link_fd, _frame(_members(told)))


def _frame(members: str) -> bytes:
    """A frame as in wire/local.py, without the modules that it needs."""
    data = ("{" + members + "}").encode()
    return len(data).to_bytes(4, "little") + data


def _members(told: dict[str, Any]) -> str:
    return ",".join(f'"{name}":{_text(value)}' for name, value in told.items())


def _text(value: object) -> str:
    if isinstance(value, int):
        return str(value)
    plain = "".join(each if " " <= each <= "~" and each not in '"\\' else "?" for each in str(value))
    return f'"{plain}"'


def _size(fd: int) -> int:
    """Bytes of output so far, where it goes to a file; -1 where it does not."""
    try:
        return os.fstat(fd).st_size if os.readlink(f"/proc/self/fd/{fd}").startswith("/") else -1
    except OSError:
        return -1


def _no_handler() -> Any:  # noqa: ANN401
    """The end of the process between is none of the program's business."""
    import _signal  # type: ignore[import-not-found]

    handler = _signal.getsignal(_SIGCHLD)
    if callable(handler):
        _signal.signal(_SIGCHLD, _signal.SIG_DFL)
    return handler


def _set_handler(handler: Any) -> None:  # noqa: ANN401
    import _signal

    if callable(handler):
        _signal.signal(_SIGCHLD, handler)


def _seek(fd: int, position: int) -> None:
    try:
        os.lseek(fd, position, os.SEEK_SET)
    except OSError:
        return


def _close(fd: int) -> None:
    try:
        os.close(fd)
    except OSError:
        return
