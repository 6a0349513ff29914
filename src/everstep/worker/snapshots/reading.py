"""A thread that reads the snapshot a rank resumes from, beside the program.

Begun with the rendezvous (`worker.hooks.hooks`), or at the latest by `everstep.State`. It compares every byte with the
sums that were written behind the snapshot, and makes and fills tensors that will be new memory in any case. Whatever
goes wrong is kept for `worker.snapshots.restoring`, which asks for it in the program's own thread; nothing is raised
here. It touches no object of the program and calls nothing of it.
"""

import atexit
import threading
from collections.abc import Callable

from everstep.checkpoint.pending import Pending
from everstep.checkpoint.stored import Stored

END_LIMIT_S = 30.0
"""How long the end of a program waits for this thread. In torch while the interpreter is taken down, it would abort the
process. Above what the largest state of a rank takes."""

Opened = tuple[Stored, Callable[[], None]]
"""The snapshot, and what raises if a byte of it is not the one that was written."""


class Reading:
    """The reading of one rank, once."""

    def __init__(self, open_snapshot: Callable[[], Opened]) -> None:
        """`open_snapshot` finds it, and reads no more of it than its description. Called on the thread."""
        self._open = open_snapshot
        self._stored: Stored | None = None
        self._pending: dict[str, Pending] = {}
        self._error: BaseException | None = None
        self._is_open = threading.Event()
        self._is_wanted = True
        self._thread = threading.Thread(target=self._run, name="everstep-restore", daemon=True)
        atexit.register(self.end)
        self._thread.start()

    def opened(self) -> Stored:
        """The snapshot, before it was compared with its sums. Raises what was raised on the way."""
        self._is_open.wait()
        if self._stored is None:
            assert self._error is not None
            raise self._error
        return self._stored

    def pending(self, name: str) -> Pending | None:
        """A part whose tensors may not be filled yet; None: it has more in it than tensors and containers."""
        self.opened()
        return self._pending.get(name)

    def whole(self) -> Stored:
        """The snapshot, when all of it was compared and what this thread fills is filled. Raises the same."""
        self._thread.join()
        atexit.unregister(self.end)
        if self._error is not None:
            raise self._error
        return self.opened()

    def end(self) -> None:
        """Stop: the data is not needed any more."""
        self._is_wanted = False
        self._thread.join(END_LIMIT_S)
        atexit.unregister(self.end)

    def _run(self) -> None:
        try:
            stored, check = self._open()
            self._pending = {name: made for name in stored.names if (made := stored.pending(name)) is not None}
            self._stored = stored
            self._is_open.set()
            check()
            for pending in list(self._pending.values()):
                if not pending.is_flat:  # of a flat one State knows better where it belongs
                    pending.fill(lambda: self._is_wanted)
        except BaseException as error:
            self._error = error
        finally:
            self._is_open.set()
