"""Keeps what the nodes see of the links between them, for verdicts on hangs. Concludes nothing by itself."""

from collections.abc import Sequence

from everstep.analyzer.hangs.links import Sight
from everstep.core.state.schema import State
from everstep.model.events import HangSuspected
from everstep.model.observations import LinksReported


class LinkReports:
    def __init__(self) -> None:
        self._generation = -1
        self._newest: dict[str, LinksReported] = {}

    def take(self, event: object, state: State) -> Sequence[HangSuspected]:
        if isinstance(event, LinksReported):
            if event.generation != self._generation:
                self._generation, self._newest = event.generation, {}
            self._newest[event.node] = event
        return ()

    def sight(self, state: State, now: float) -> Sight | None:
        """None where no link is watched, or nothing is known of any yet."""
        node_of = {rank: worker.node for rank, worker in state.workers.items()}
        links = {
            node: tuple((seen, now - event.at) for seen in event.links)
            for node, event in self._newest.items()
            if event.generation == state.generation and state.is_active(node)
        }
        ports = {
            node: tuple((port, now - self._newest[node].at) for port in self._newest[node].ports) for node in links
        }
        return Sight(links=links, node_of=node_of, ports=ports) if links else None
