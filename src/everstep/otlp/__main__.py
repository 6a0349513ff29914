"""The exporter of one run: `python -m everstep.otlp --run-dir DIR`, started by the launcher.

Its stdin is a pipe from its parent: the end of the pipe means that the parent is gone.
"""

import argparse
import asyncio
import contextlib
import os
import sys
from pathlib import Path

from everstep.journal.runs import RunDir
from everstep.notices.__main__ import LOWEST, is_alone
from everstep.notices.notifier import log, log_to
from everstep.otlp.settings import why_not


def main() -> int:
    parser = argparse.ArgumentParser(prog="everstep.otlp")
    parser.add_argument("--run-dir", type=Path, required=True)
    given = parser.parse_args()
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, LOWEST)
    log_to(None)
    why = why_not(os.environ)
    if why:
        log.error("nothing is exported: %s", why)
        return 2
    from everstep.otlp.exporter import Exporter  # the SDK

    asyncio.run(Exporter(RunDir(given.run_dir), os.environ, is_alone).run())
    sys.stdout.flush()
    os._exit(0)  # a thread that waits for a receiver is not waited for


if __name__ == "__main__":
    sys.exit(main())
