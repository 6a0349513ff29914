"""Calls that may never return, with a time limit: a thread that hangs is left behind, at most one per key."""

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Call(Generic[T]):
    """One call, in its own thread, which may never end. `on_done` is called in that thread."""

    def __init__(self, call: Callable[[], T], name: str, on_done: Callable[[], None] = lambda: None) -> None:
        self._call = call
        self._on_done = on_done
        self._result: list[T] = []
        self._error: Exception | None = None
        self.done = threading.Event()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def _run(self) -> None:
        try:
            self._result.append(self._call())
        except Exception as error:
            self._error = error
        finally:
            self.done.set()
            self._on_done()

    def result(self) -> T:
        """The result; raises what the call raised. Use it only after `done` is set."""
        if self._error is not None:
            raise self._error
        return self._result[0]


class Bounded(Generic[T]):
    """One call at a time for each key; while it hangs, another one fails at once and starts nothing."""

    def __init__(self) -> None:
        self._hung: dict[str, Call[T]] = {}

    def call(self, key: str, call: Callable[[], T], limit_s: float) -> T:
        """Raises TimeoutError, and what the call raises."""
        hung = self._hung.get(key)
        if hung is not None:
            if not hung.done.is_set():
                raise TimeoutError(key)
            del self._hung[key]
        made = Call(call, f"everstep-ask-{key}")
        if not made.done.wait(limit_s):
            self._hung[key] = made
            raise TimeoutError(key)
        return made.result()
