"""One thread of ours in the training process: where do its process groups stand, and the flight record on request.

It writes two cells of the board every half second and sleeps otherwise; the training thread never waits for it. It
holds no reference to a group between two looks. Everything fails open: what it cannot see is unknown. A rank whose
interpreter lock is held, or that is stopped, does not answer, and that is an answer as well.

Started by `Runtime.start_watch` when the first rendezvous is done. The agent asks over a socket of its own, because the
link is read by the main thread.
"""

import os
import select
import socket
import sys
import threading
import time
from typing import Any

from everstep.wire import local
from everstep.worker.board import BoardLine

LOOK_S = 0.5
"""Shorter than a quarter of the shortest window, so that it hardly adds to the time to detect. A look takes some
microseconds per process group."""

_MAX_ERROR = 300


def start(board: BoardLine, link: socket.socket) -> None:
    thread = threading.Thread(target=_run, args=(board, link), name="everstep-watch", daemon=True)
    thread.start()


def _run(board: BoardLine, link: socket.socket) -> None:
    """Until the agent closes its end."""
    try:
        poll = select.poll()
        poll.register(link, select.POLLIN)
        while True:
            if poll.poll(LOOK_S * 1000):
                received = local.recv(link)
                if received is None:
                    return
                local.send(link, _answer(received[0]))
            _look(board)
    except (OSError, local.FrameError):
        return
    finally:
        board.forget_communication()  # nobody looks any more: unknown, not silent


def _look(board: BoardLine) -> None:
    seq = _sequence_numbers()
    if seq is None:
        board.forget_communication()
    else:
        board.set_communication(seq, time.time())


def _sequence_numbers() -> int | None:
    """Of all groups of this rank together; None where there is none that counts."""
    module: Any = sys.modules.get("torch.distributed.distributed_c10d")
    known = None
    try:
        for group in list(module._world.pg_map):
            try:
                known = (known or 0) + group._get_sequence_number_for_group()
            except RuntimeError:
                continue  # a backend that does not count
    except Exception:
        return None
    return known


def _answer(frame: local.Frame) -> local.Frame:
    """`{"do": "dump", "id": 3, "path": ...}` -> `{"dumped": 3}` or `{"dumped": 3, "why": ...}`."""
    number = frame.get("id")
    try:
        _dump(str(frame["path"]))
    except Exception as error:
        return {"dumped": number, "why": f"{type(error).__name__}: {error}"[:_MAX_ERROR]}
    return {"dumped": number}


def _dump(path: str) -> None:
    """torch's flight record as JSON: under a millisecond, without stacks (those would be symbolised)."""
    module: Any = sys.modules["torch._C._distributed_c10d"]
    data = module._dump_fr_trace_json(True, False)
    part = path + ".part"
    with open(part, "wb") as file:
        file.write(data if isinstance(data, bytes) else data.encode())
    os.replace(part, path)
