"""Who holds the lock on a file that a process waits for, from the kernel's own table. Reads /proc, touches no file.

A lock that another machine holds, over a network file system, is not in this table; nor is one of a process that may
not be seen from here. Called by `waiting`.
"""

from collections.abc import Sequence

from everstep.linux import proc

_TABLE = "/proc/locks"
_WAITS = "->"
MAX_HOLDERS = 3
"""Of a lock that many may have at once."""


def holders_of(pid: int) -> list[int]:
    """The processes that have the lock which this one waits for; empty: not known."""
    return holders_in(proc.read_or_nothing(_TABLE).decode("ascii", "replace"), pid)


def called(holders: Sequence[int]) -> str:
    """ "python (pid 501)"."""
    return ", ".join(_called(holder) for holder in holders[:MAX_HOLDERS])


def holders_in(table: str, pid: int) -> list[int]:
    """Process ids of those that have the lock which this one waits for. A line is "1: FLOCK ADVISORY WRITE 501 ...",
    and who waits for that lock stands below it with the same number and an arrow."""
    rows = [line.split() for line in table.splitlines()]
    wanted = {row[0] for row in rows if len(row) > 5 and row[1] == _WAITS and row[5] == str(pid)}
    found = [row[4] for row in rows if len(row) > 4 and row[0] in wanted and row[1] != _WAITS]
    return list(dict.fromkeys(int(text) for text in found if text.isdigit() and int(text) not in (0, pid)))


def _called(pid: int) -> str:
    found = proc.stat(pid)
    return f"pid {pid}, which has ended" if found is None or not found.name else f"{found.name} (pid {pid})"
