"""How often sockets are counted: by what it takes of a processor, and not by how busy the node is."""

import asyncio
import time

from everstep.agent.watching import sockets
from everstep.agent.watching.sockets import EVERY_S, SHARE, Sockets
from everstep.probes.rank.traffic import TrafficProbe


def due_after(monkeypatch, work) -> float:
    """Seconds from a count, which did this, to the next."""

    def counted(pids):
        work()
        return {pid: {7: 100} for pid in pids}

    monkeypatch.setattr(sockets, "bytes_of", counted)
    asked = Sockets()
    assert asked.is_due(0.0)
    asyncio.run(asked.count([((1, 2), TrafficProbe())], 0.0))
    return asked._due_at


def test_a_busy_node_is_counted_as_often_as_others(monkeypatch):
    assert due_after(monkeypatch, lambda: time.sleep(0.2)) == EVERY_S


def test_a_node_with_very_many_sockets_is_counted_less_often(monkeypatch):
    def compute():
        until = time.thread_time() + 0.05
        while time.thread_time() < until:
            pass

    assert due_after(monkeypatch, compute) >= 0.05 / SHARE
