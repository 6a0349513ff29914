"""The process that tells people of incidents. It is started and left alone: nothing here waits for it.

Its stdin is a pipe that only the launcher holds: when that ends, it tells what is left within seconds and ends.
"""

import contextlib
import logging
import os
import subprocess
import sys
from pathlib import Path

log = logging.getLogger("everstep.launcher")


def start_notifier(config: str, run_dir: Path) -> subprocess.Popen[bytes] | None:
    """None: nobody is to be told, or it cannot be started, which is no reason not to train."""
    if not config:
        return None
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(run_dir / "notices.log", flags, 0o600)
        with os.fdopen(fd, "ab") as told:
            return subprocess.Popen(
                [sys.executable, "-P", "-m", "everstep.notices", "--run-dir", str(run_dir), "--config", config],
                stdin=subprocess.PIPE,
                stdout=told,
                stderr=told,
                start_new_session=True,
            )
    except OSError as error:
        log.warning("notices cannot be sent: %s", error)
        return None


def end_notifier(process: subprocess.Popen[bytes] | None) -> None:
    if process is not None and process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()
        process.returncode = process.poll() or 0  # it ends by itself, after us
