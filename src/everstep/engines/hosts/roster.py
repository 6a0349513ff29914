"""The other hosts of a run: which there are, what number each has, and which nodes run on which."""

import time
from collections.abc import Callable, Iterator, Mapping

from everstep.engines.hosts.admission import Known, Shape, objection
from everstep.engines.hosts.host import Host
from everstep.engines.local import LocalEngine
from everstep.wire.heirs import public
from everstep.wire.joining import Join


class Roster:
    """`head`: this host. `earlier`: another host was the first one; numbers of hosts by public session."""

    def __init__(self, shape: Shape, head: Known, local: LocalEngine, earlier: Mapping[str, int] | None) -> None:
        self.shape = shape
        self._head, self._local, self._earlier = head, local, earlier
        self._hosts: dict[str, Host] = {}  # by session, in order of arrival
        self._given_up: dict[str, str] = {}  # why, by session
        self._fenced: set[str] = set()  # nodes that no longer count, wherever they may still run
        self._num_hosts = 1 + max(earlier.values(), default=0) if earlier is not None else 1

    def __iter__(self) -> Iterator[Host]:
        """In the order in which they came."""
        return iter(tuple(self._hosts.values()))

    def find(self, join: Join) -> Host | None:
        """The one that comes back with this."""
        return self._hosts.get(join.session)

    def fence(self, node: str) -> bool:
        """From now on this node does not count. Whether it did until now."""
        is_new = node not in self._fenced
        self._fenced.add(node)
        return is_new

    def is_fenced(self, node: str) -> bool:
        return node in self._fenced

    @property
    def was_complete(self) -> bool:
        return self._num_hosts >= self.shape.num_hosts

    def objection(self, join: Join) -> str:
        """Why this host cannot join; empty: it can. Hosts that are gone leave their places to others."""
        for session, host in list(self._hosts.items()):
            if host.line is None and not self._holds(host):
                del self._hosts[session]
        return self._objection(
            join, lambda host: host.is_heard or (self._holds(host) and not host.is_same_machine(join))
        )

    def is_in_its_own_way(self, join: Join) -> bool:
        """This host could join if its machine's earlier life, of which something was heard just now, were not there."""
        return not self._objection(
            join, lambda host: not host.is_same_machine(join) and (host.is_heard or self._holds(host))
        )

    def _objection(self, join: Join, counts: Callable[[Host], bool]) -> str:
        known = [
            Known(session=session, host=host.join.host, node_rank=host.join.node_rank)
            for session, host in self._hosts.items()
            if counts(host)
        ]
        return objection(self.shape, [self._head, *known], join)

    def add(self, join: Join) -> Host:
        """One that was not there before, with the nodes that were started there when another host was the first one."""
        host = self._hosts[join.session] = Host(join, self._number_of(join))
        nodes = [node for node in join.nodes if self.may_have_run(node)]
        host.nodes.update(nodes)
        host.given_up = self._given_up.get(join.session, "")
        host.node = next((node for node in nodes if node not in self._fenced), "")
        return host

    def host_of(self, node: str) -> Host | None:
        return next((host for host in self if node in host.nodes), None)

    def give_up(self, node: str, why: str) -> Host | None:
        """Its host gets no other node, also when it was forgotten and comes back."""
        host = self.host_of(node)
        if host is not None and host.node == node:
            host.given_up = self._given_up[host.join.session] = why
        return host

    def may_have_run(self, node: str) -> bool:
        """Whether to believe a host that says that the node ran there: it began before this host had the controller,
        and belongs to no other host."""
        return self._earlier is not None and node not in self._local.pids and self.host_of(node) is None

    def idle(self) -> Host | None:
        """The first one that could have a node now."""
        return next((each for each in self if _is_idle(each)), None)

    def _holds(self, host: Host) -> bool:
        """A node that counts runs there, as far as is known."""
        return bool(host.node) and host.node not in self._fenced

    def _number_of(self, join: Join) -> int:
        if self._earlier is not None and public(join.session) in self._earlier:
            return self._earlier[public(join.session)]
        self._num_hosts += 1
        return self._num_hosts - 1


def _is_idle(host: Host) -> bool:
    is_here = host.line is not None and not host.is_done and not host.leaves and not host.given_up
    return is_here and not host.node and time.monotonic() >= host.not_before
