"""The process in which the stores live: it imports torch, so that the launcher need not, and the ranks need not wait.

Asked by `Stores` over a socket of whole messages, once it has said `loaded`: torch is there. `open 3 <host> <port>`,
with the listening socket: the store of the generation before is closed, `closed 3` says so, and the new one begins,
which `opened 3` says. `failed <why>`: it could not. `no-torch <why>`: torch cannot be imported. It ends when the
launcher's end of the socket is closed.
"""

import datetime
import os
import signal
import socket
import sys
from typing import Any

from everstep.launcher.stores import store_class
from everstep.linux import heap
from everstep.linux.parent import die_with_parent

_TIMEOUT = datetime.timedelta(seconds=30)
_MAX_MESSAGE = 4096
WHOLE = "whole"
"""As the last argument: import torch as a program does."""


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the launcher ends it, after all users of a store
    if not die_with_parent(int(sys.argv[1])):
        return
    heap.keep_little()
    asked = socket.socket(fileno=int(sys.argv[2]))
    is_whole = sys.argv[3:] == [WHOLE]
    try:
        store_class_of_torch = store_class.imported() if is_whole else store_class.loaded()
    except Exception as error:  # a broken build raises anything
        if not is_whole:
            _begin_again()
        asked.send(_text(f"no-torch {type(error).__name__}: {error}"))
        return
    asked.send(_text("loaded"))
    store: Any = None
    while True:
        message, fds, _, _ = socket.recv_fds(asked, _MAX_MESSAGE, 1)
        if not message:
            return
        _, generation, host, port = message.decode().split()
        del store  # the last reference: its thread ends
        asked.send(_text(f"closed {generation}"))
        store = None
        try:
            store = _serve(store_class_of_torch, host, int(port), fds[0])
            asked.send(_text(f"opened {generation}"))
        except Exception as error:
            asked.send(_text(f"failed {error}"))


def _begin_again() -> None:
    """With the whole of torch, in this very process: its parts did not come by themselves."""
    os.execv(sys.executable, [*sys.orig_argv, WHOLE])


def _serve(store_class_of_torch: Any, host: str, port: int, listening: int) -> Any:  # noqa: ANN401
    return store_class_of_torch(
        host_name=host,
        port=port,
        world_size=None,
        is_master=True,
        timeout=_TIMEOUT,
        wait_for_workers=False,
        master_listen_fd=listening,  # the store closes it
        **store_class.kind(),
    )


def _text(said: str) -> bytes:
    return said.encode(errors="replace")[:_MAX_MESSAGE]


if __name__ == "__main__":
    main()
