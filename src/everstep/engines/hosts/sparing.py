"""Silent nodes that are not lost: their machine is heard, and their agent only comes to nothing there."""

import asyncio
import time
from collections.abc import Callable

from everstep.engines.hosts.host import Host
from everstep.engines.hosts.roster import Roster
from everstep.engines.local import LocalEngine

LOOK_S = 0.1

SPARED_S = 15.0
"""For so long the host of a node that was spared is watched: by then the controller has asked again."""


class Sparing:
    """`lose`: called with a host that has fallen silent after its node was spared, and the node."""

    def __init__(self, roster: Roster, local: LocalEngine, lease_s: float, lose: Callable[[Host, str], None]) -> None:
        self._roster, self._local, self._lease_s, self._lose = roster, local, lease_s, lose

    def spare(self, node: str) -> str:
        """Why this node is only late; "" if it may be lost."""
        host = self._roster.host_of(node)
        if host is None:
            late = self._local.find_late(node)
            return late.says if late is not None else ""
        why = host.why_spared(self._lease_s) if host.node == node else ""
        if why:
            self._watch(host, node, time.monotonic() + SPARED_S)
        return why

    def _watch(self, host: Host, node: str, until: float) -> None:
        if host.node != node or self._roster.is_fenced(node):
            return
        if not host.is_heard_within(self._lease_s):
            self._lose(host, node)
        elif time.monotonic() < until:
            asyncio.get_running_loop().call_later(LOOK_S, self._watch, host, node, until)
