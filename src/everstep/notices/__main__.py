"""The notifier of one run: `python -m everstep.notices --run-dir DIR --config FILE`, started by the launcher.

Its stdin is a pipe from its parent: the end of the pipe means that the parent is gone.
"""

import argparse
import asyncio
import contextlib
import os
import select
import sys
from pathlib import Path

from everstep.errors import EverstepError
from everstep.journal.runs import RunDir
from everstep.notices.command import end_children
from everstep.notices.notifier import Notifier, log, log_to
from everstep.notices.settings import load_receivers

LOWEST = 19


def main() -> int:
    parser = argparse.ArgumentParser(prog="everstep.notices")
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--config", type=Path, required=True)
    given = parser.parse_args()
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, LOWEST)
    log_to(None)
    try:
        receivers = load_receivers(given.config)
    except EverstepError as error:
        log.error("%s", error)
        return error.exit_code
    try:
        asyncio.run(Notifier(RunDir(given.run_dir), receivers, is_alone).run())
    except Exception:
        log.exception("a fault of everstep's own")
    end_children()
    sys.stdout.flush()
    os._exit(0)  # a thread that waits for a mail server is not waited for


def is_alone() -> bool:
    """Whether the pipe on stdin has ended."""
    readable, _, _ = select.select([0], [], [], 0)
    return bool(readable) and not os.read(0, 1)


if __name__ == "__main__":
    sys.exit(main())
