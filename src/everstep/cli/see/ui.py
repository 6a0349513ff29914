"""Pages of a run, or of all runs of a directory, in a browser: live, and months later.

everstep ui                 all runs that are known here
everstep ui RUN             one of them
everstep ui DIR             all runs in a directory

It listens on 127.0.0.1, only reads, and prints the link that opens it. Ctrl-C ends it. A live run has the same
pages at its own port (`ui` in the first lines of `everstep run`).
"""

import argparse
import asyncio
import os
import signal
import socket
import stat
import sys
from pathlib import Path

from everstep.errors import ConfigError
from everstep.journal.runs import JOURNAL_NAME, find_run, home
from everstep.linux import heap
from everstep.report.parts.ansi import safe


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("which", nargs="?", metavar="RUN|DIR", help="an id, a run's directory, or one with runs in it")
    parser.add_argument("--run-dir", metavar="DIR", help="the run's directory, as given to everstep run")
    parser.add_argument("--port", type=int, default=0, metavar="N", help="default: a free one")


def run(given: argparse.Namespace) -> int:
    """Raises ConfigError."""
    folder, below = _place(given.which, given.run_dir)
    from everstep.web.server import listen, new_token

    heap.keep_little()
    token = new_token()
    sock = listen(given.port)
    address = f"http://127.0.0.1:{sock.getsockname()[1]}/?token={token}"
    if _others_read_output():
        raise ConfigError("the link would be printed into a file that other users may read. Nothing was started. "
                          "Print to a terminal, or `umask 077` first")  # fmt: skip
    sys.stdout.write(safe(f"everstep ui {folder}\n  {address}{below}\n  Ctrl-C ends it\n"))
    sys.stdout.flush()
    asyncio.run(_serve(folder, sock, token))
    return 0


def _place(which: str | None, run_dir: str | None) -> tuple[Path, str]:
    """The directory with the runs, and the run that is meant as a fragment of the address."""
    if which is None and run_dir is None:
        folder = home() / "runs"
        if not folder.is_dir():
            raise ConfigError(f"no run yet in {home()}. Try: everstep demo")
        return folder, ""
    path = Path(which).expanduser() if which is not None else None
    if path is not None and run_dir is None and path.is_dir() and not (path / JOURNAL_NAME).exists():
        return path.absolute(), ""
    found = find_run(which, run_dir).path
    return found.parent, f"&run={found.name}"


def _others_read_output() -> bool:
    try:
        status = os.fstat(sys.stdout.fileno())
    except (OSError, ValueError):
        return False
    return stat.S_ISREG(status.st_mode) and bool(status.st_mode & 0o044)


async def _serve(folder: Path, sock: socket.socket, token: str) -> None:
    from everstep.web.server import serve

    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await serve(folder, sock, token, stop)
