"""Limits of this machine and this user: those that a run cannot live with, and senses that it has to do without.

It starts nothing and leaves nothing behind. Called by `launcher.run`.
"""

import os
import resource
from collections.abc import Mapping

from everstep.errors import ConfigError
from everstep.probes.node.kernel.kernel_lines import KernelLines, path_for
from everstep.probes.sense import UnsupportedError

MIN_FILES = 64
"""Descriptors of the launcher, the controller or an agent: sockets, journals, logs, memory of snapshots."""

USUAL_FILES = 1024

MIN_FILE_BYTES = 64 << 20
"""Room for one file: the journal of some days, a rank's log."""

OFF = ("off", "0", "no")


def check_limits() -> None:
    """Raises ConfigError for limits with which the run would hang, with nothing to say why. A limit of open files that
    is too low is raised as far as the system lets it; any other is left to the program."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= soft < MIN_FILES:
        soft = USUAL_FILES if hard < 0 else min(USUAL_FILES, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if 0 <= soft < MIN_FILES:
        raise ConfigError(
            f"too few open files are allowed: {soft} (ulimit -n), needed are at least {MIN_FILES}. "
            f"Nothing was started. Raise the limit: ulimit -n {USUAL_FILES}"
        )
    size, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if 0 <= size < MIN_FILE_BYTES:
        raise ConfigError(
            f"files may not grow beyond {size} bytes (ulimit -f), needed are at least {MIN_FILE_BYTES}. "
            "Nothing was started: its journal could not be written. Raise the limit: ulimit -f unlimited"
        )


def unseen(environ: Mapping[str, str]) -> str:
    """Explain what the nodes of this machine cannot observe as this user; empty if nothing is missing, or sensing is
    off."""
    if environ.get("EVERSTEP_SENSING", "").lower() in OFF:
        return ""
    try:
        KernelLines(path_for("n0", environ)).close()
    except UnsupportedError as error:
        return f"not seen as user {os.getuid()}: kernel log (Xid, MCE, I/O errors): {error}"
    return ""
