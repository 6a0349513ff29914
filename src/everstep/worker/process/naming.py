"""The kernel's name of a thread of ours: whoever looks from outside can tell it from the program's own threads."""

import contextlib
import threading


def name_thread() -> None:
    """The calling thread's, as Python has it. The kernel keeps fifteen characters."""
    with contextlib.suppress(OSError):
        with open(f"/proc/self/task/{threading.get_native_id()}/comm", "w") as file:
            file.write(threading.current_thread().name[:15])
