"""Ties processes to their parent, and runs measurements in forked processes, each on a core of its own.

Called in the child of a check, which has imported torch but never computed with it: a fork of it is still single-
threaded. Whatever dies, nothing is left: every process here has PR_SET_PDEATHSIG, and they share the session that the
runner kills.
"""

import os
import selectors
import signal
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from everstep.linux.parent import die_with_parent


class Failed(msgspec.Struct, frozen=True, kw_only=True):
    """A forked measurement without a result."""

    why: str


Answer = dict[str, Any] | Failed


def end_with(parent: int) -> None:
    """SIGKILL for this process when `parent` (its pid) ends; at once when it has ended already."""
    if not die_with_parent(parent):
        os._exit(1)


def run_forked(
    works: Sequence[Callable[[], dict[str, Any]]], *, limit_s: float, cores: Sequence[int | None] = ()
) -> list[Answer]:
    """Runs all works at once, each in a fork (on `cores[i]` if given), and gives their answers in the same order."""
    pins = list(cores) or [None] * len(works)
    started = [_fork(work, pin) for work, pin in zip(works, pins, strict=True)]
    answers: list[Answer] = [Failed(why=f"no answer within {limit_s:g} s") for _ in works]
    texts = _read_all([fd for _, fd in started], limit_s)
    for index, (pid, _) in enumerate(started):
        if texts[index] is None:
            os.kill(pid, signal.SIGKILL)
        status = os.waitpid(pid, 0)[1]
        text = texts[index]
        if text is not None:
            answers[index] = _answer(text, status)
    return answers


def _fork(work: Callable[[], dict[str, Any]], core: int | None) -> tuple[int, int]:
    reader, writer = os.pipe()
    parent = os.getpid()
    pid = os.fork()
    if pid:
        os.close(writer)
        return pid, reader
    try:
        end_with(parent)
        os.close(reader)
        if core is not None:
            os.sched_setaffinity(0, {core})
        answer: dict[str, Any] = {"answer": work()}
    except BaseException as error:
        answer = {"error": f"{type(error).__name__}: {error}"}
    try:
        with os.fdopen(writer, "wb") as pipe:
            pipe.write(msgspec.json.encode(answer))
    finally:
        os._exit(0)


def _read_all(fds: Sequence[int], limit_s: float) -> list[bytes | None]:
    """All that came until the end of each pipe; None for those that had not ended in time."""
    parts: list[list[bytes]] = [[] for _ in fds]
    done: set[int] = set()
    deadline = time.monotonic() + limit_s
    with selectors.DefaultSelector() as selector:
        for index, fd in enumerate(fds):
            selector.register(fd, selectors.EVENT_READ, index)
        while len(done) < len(fds) and (left := deadline - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                chunk = os.read(key.fd, 65536)
                if chunk:
                    parts[key.data].append(chunk)
                else:
                    done.add(key.data)
                    selector.unregister(key.fd)
    for fd in fds:
        os.close(fd)
    return [b"".join(chunks) if index in done else None for index, chunks in enumerate(parts)]


def _answer(text: bytes, status: int) -> Answer:
    if os.WIFSIGNALED(status):
        return Failed(why=f"killed by {signal.Signals(os.WTERMSIG(status)).name}")
    try:
        content = msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError as error:
        return Failed(why=f"answer not understood: {error}")
    if "error" in content:
        return Failed(why=str(content["error"]))
    answer = content["answer"]
    return answer if isinstance(answer, dict) else Failed(why=f"answer is not an object: {answer!r}")
