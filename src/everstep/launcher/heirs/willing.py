"""Whether a host takes part in electing the controller's host.

Ranks on the controller's host stand still when too few others confirm that they hear it, and a host that waits for a
disk confirms nothing. A file server that hangs would stop a training that does not need it: so a host whose files lie
on one takes no part, unless the user wants it.
"""

import os
from pathlib import Path

from everstep.linux.mounts import is_shared, mounts_of_this_process

SUCCESSOR = "EVERSTEP_SUCCESSOR"
"""In the environment: `off`: this host does not, `on`: it does; on the first host for the whole run."""


def is_wished() -> bool | None:
    """By the person who started the run; None: nothing is said, or nothing that is known."""
    return {"on": True, "off": False}.get(os.environ.get(SUCCESSOR, ""))


def misunderstood() -> str:
    """A value that has no effect, for the person who gave it; empty: there is none."""
    said = os.environ.get(SUCCESSOR, "")
    return f"{SUCCESSOR}={said} has no effect: it is on or off" if said not in ("", "on", "off") else ""


def refusal(folder: Path) -> str:
    """Why this host takes no part; empty: it does. `folder`: where the journal is kept."""
    wish = is_wished()
    if wish is False:
        return f"{SUCCESSOR} is off"
    if wish or not is_shared(folder, mounts_of_this_process()):
        return ""
    why = "is on a file system that hosts share, whose server may hang"
    return f"{folder} {why}; {SUCCESSOR}=on on each host keeps the journal all the same"
