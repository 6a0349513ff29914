"""The kernel's name of a thread of ours, which tells it from the program's own threads in outside views."""

import _thread
import contextlib


def name_thread(name: str) -> None:
    """The calling thread's. The kernel keeps fifteen characters. `threading` hears nothing of it."""
    with contextlib.suppress(OSError):
        with open(f"/proc/self/task/{_thread.get_native_id()}/comm", "w") as file:
            file.write(name[:15])
