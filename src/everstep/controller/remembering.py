"""Lessons of a run about machines, written to the memory of machines (`health`), which outlives the run.

Written in a thread, in order, behind the journal: the memory is a convenience and the journal the truth, so a failed
write costs nothing else. Faults that a drill caused blame no machine and are not remembered.
"""

import asyncio
import logging
from collections.abc import Mapping

import msgspec

from everstep import health
from everstep.controller.draining import is_drained
from everstep.core.decide import eviction
from everstep.core.state.schema import Incident, Member, State
from everstep.health import HealthEvent, Kind
from everstep.model import actions as act
from everstep.model.events import NodeAlerted, NodeLost
from everstep.model.names import is_name
from everstep.model.record import Record
from everstep.model.verdict import Blame, Verdict

MAX_WAITING = 256
"""Entries that wait for a slow disk. More are dropped: a machine with so many is known by now."""

log = logging.getLogger("everstep.controller")


class Remembering:
    def __init__(self, run: str) -> None:
        self._run = run
        self._drills: set[str] = set()
        self._verdicts: dict[str, Verdict] = {}
        self._waiting: asyncio.Queue[HealthEvent] = asyncio.Queue(MAX_WAITING)

    def resume(self, incident: Incident | None) -> None:
        """Another controller had opened this incident."""
        if incident is not None and incident.drill is not None:
            self._drills.add(incident.id)

    def note(self, record: Record, state: State) -> None:
        """A record was written and acted on; `state` is what it led to."""
        members = state.members
        if isinstance(record.event, NodeAlerted):
            self._alerts(record.event, members)
        for action in record.actions:
            match action:
                case act.IncidentOpened(incident=incident, drill=drill) if drill is not None:
                    self._drills.add(incident)
                case act.Concluded(incident=incident, verdict=verdict):
                    self._verdicts[incident] = verdict
                case act.IncidentClosed(incident=incident):
                    self._close(incident, record.at, members)
                case act.EvictNode(node=node, why=why, is_silent=False) if not self._is_drill(state):
                    blame = Blame.OPERATOR if is_drained(state, node) else ""
                    self._put(node, members, HealthEvent(at=record.at, kind=Kind.EVICTION, why=why, blame=blame))
                case act.ReleaseNode(node=node) if isinstance(record.event, NodeLost) and members[node].silent:
                    why = f"{node}: {members[node].silent}"
                    self._put(node, members, HealthEvent(at=record.at, kind=Kind.EVICTION, why=why))
                case _:
                    pass

    def _is_drill(self, state: State) -> bool:
        return state.incident is not None and state.incident.id in self._drills

    async def work(self) -> None:
        """Until cancelled; what waits then is still written."""
        try:
            while True:
                await asyncio.to_thread(health.record, await self._waiting.get())
        finally:
            while not self._waiting.empty():
                health.record(self._waiting.get_nowait())

    def _alerts(self, event: NodeAlerted, members: Mapping[str, Member]) -> None:
        for alert in event.alerts:
            if alert.severity in ("fault", "error") and is_name(alert.code):
                happened = HealthEvent(
                    at=alert.at,
                    kind=Kind.ALERT,
                    why=alert.sentence,
                    code=alert.code,
                    blame=alert.blame,
                    severity=alert.severity,
                    action=alert.action,
                )
                self._put(event.node, members, happened)

    def _close(self, incident: str, at: float, members: Mapping[str, Member]) -> None:
        verdict = self._verdicts.pop(incident, None)
        if verdict is None or verdict.node is None or incident in self._drills:
            return
        if verdict.code in eviction.SLOW_MACHINE or verdict.action in (*eviction.REPLACE, *eviction.DRAIN):
            happened = HealthEvent(
                at=at,
                kind=Kind.INCIDENT,
                why=verdict.sentence,
                code=verdict.code,
                blame=str(verdict.blame),
                action=verdict.action,
                incident=incident,
            )
            self._put(verdict.node, members, happened)

    def _put(self, node: str, members: Mapping[str, Member], happened: HealthEvent) -> None:
        member = members.get(node)
        if member is None:
            return
        why = f"{node}: {happened.why}"
        event = msgspec.structs.replace(happened, host=member.host, run=self._run, why=why)
        try:
            self._waiting.put_nowait(event)
        except asyncio.QueueFull:
            log.warning("%s of %s is not remembered: too much waits to be written", happened.kind, node)
