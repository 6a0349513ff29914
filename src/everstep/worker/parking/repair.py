"""What a fork breaks in a Python program that continues in it, and its repair: threads that were about to start, locks
between processes that a dead rank may hold, the number of the main thread, modules that only we have loaded.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # `typing` would be imported before the program imports it
if TYPE_CHECKING:
    from typing import Any


def keep() -> dict[str, Any]:
    """Before the fork."""
    threading = sys.modules.get("threading")
    starting = dict(threading._limbo) if threading is not None and hasattr(threading, "_limbo") else {}
    return {"starting": starting, "locks": _locks()}


def restore(before: dict[str, Any]) -> None:
    """In the process that continues."""
    threading = sys.modules.get("threading")
    if threading is not None:
        for thread in before["starting"]:
            thread._is_stopped = False
            thread._reset_internal_locks(True)
            threading._limbo[thread] = thread
        main = threading.main_thread()
        if hasattr(main, "_set_native_id"):
            main._set_native_id()
    for lock, value, times in before["locks"]:
        _make_again(lock, value)
        for _ in range(times):
            lock.acquire()


def forget(before: set[str]) -> None:
    """What we have imported since is not what the program finds loaded. Torch loads all of it anyway."""
    if "torch" in sys.modules:
        return
    for name in set(sys.modules) - before:
        if not name.startswith("everstep"):
            del sys.modules[name]


def _locks() -> list[tuple[Any, int, int]]:
    """Locks and semaphores of `multiprocessing`, with their values, and how often this thread holds them. They are
    shared with every fork."""
    util = sys.modules.get("multiprocessing.util")
    synchronize = sys.modules.get("multiprocessing.synchronize")
    if util is None or synchronize is None:
        return []
    found = [each for each in util._afterfork_registry.values() if isinstance(each, synchronize.SemLock)]
    return [(lock, *_state_of(lock)) for lock in found]


def _state_of(lock: Any) -> tuple[int, int]:  # noqa: ANN401
    """The count of a lock. It is free or mine: no other thread or process is there yet that could hold it."""
    if lock._semlock.maxvalue == 1:
        return 1, lock._semlock._count() if lock._semlock._is_mine() else 0
    return _value(lock), 0


def _value(lock: Any) -> int:  # noqa: ANN401
    try:
        return int(lock._semlock._get_value())
    except (OSError, NotImplementedError):
        return int(lock._semlock.maxvalue)


def _make_again(lock: Any, value: int) -> None:  # noqa: ANN401
    old = lock._semlock
    for _ in range(100):
        try:
            lock._semlock = type(old)(old.kind, value, old.maxvalue, lock._make_name(), True)
        except FileExistsError:
            continue
        lock._make_methods()
        return
