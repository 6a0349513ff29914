"""A process that was forked twice knows at once that its agent is gone: it waits for nobody who cannot come."""

import os
import select

from everstep.worker.parking.twin import is_adopted

STRANGER = 1 << 30  # no process has this number
LIMIT_S = 60.0


def test_a_twin_whose_agent_has_died_meanwhile_does_not_wait():
    reads, writes = os.pipe()
    between = os.fork()
    if between == 0:
        between = os.getpid()
        if os.fork() == 0:
            os.write(writes, b"no" if not is_adopted(STRANGER, between) else b"yes")
        os._exit(0)
    os.waitpid(between, 0)
    assert select.select([reads], [], [], LIMIT_S)[0]
    assert os.read(reads, 8) == b"no"
    os.close(reads)
    os.close(writes)
