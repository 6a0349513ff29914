"""The process that writes to the persistent tier: it ends with its agent, takes no CPU from the training, and is
`python -m everstep.checkpoint.persist` otherwise. Started by `agent.copies.writer`.
"""

import os
import runpy
import sys

from everstep.linux.parent import die_with_parent

NICENESS = 10
HURRY_VARIABLE = "EVERSTEP_WRITER_HURRY"
"""No rank runs beside it any more, and the time until the machine is taken away is short.
`checkpoint.persist.store.retention` reads it, too."""


def main() -> None:
    """Never returns but by the end of the process."""
    if not die_with_parent(int(os.environ["EVERSTEP_AGENT_PID"])):
        sys.exit("the agent is gone")
    if os.environ.get(HURRY_VARIABLE) != "1":
        os.nice(NICENESS)
    runpy.run_module("everstep.checkpoint.persist", run_name="__main__", alter_sys=True)
