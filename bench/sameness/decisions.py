"""What a run decided, incident by incident, in words that do not depend on who gave it its nodes. Pure.

Nodes become the slots that they held. Process ids, times, hosts, addresses, numbers of requests and the sentences for
people (which name the engine's own doings) are left out. Used by engines.py.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from everstep.model import actions as act
from everstep.model.events import NodeJoined, StopRequested
from everstep.model.record import Record
from everstep.model.verdict import Decision, Verdict

COMPARED = (
    "code",
    "party",
    "confidence",
    "certainty",
    "ranks",
    "slot",
    "rule",
    "chosen",
    "not done",
    "then",
    "stopped",
    "nodes",
    "started",
    "resumed",
    "lost steps",
    "closed",
    "saved",
    "ended",
)
SHOWN = ("first sign", "grace", "snapshots")
"""What an engine may see, or have, in its own way: told beside the rest, and not compared."""

NORMALISED = (
    "ids of nodes are the slots that they held, or `a standby`, `a new node`",
    "left out: process ids, times, hosts, addresses, ports, ids of requests, numbers of steps (but how many were lost)",
    "left out: sentences and their evidence, which tell what the engine saw in its own words",
    "left out: what is done between two incidents (nodes asked for to replace a standby, copies of snapshots placed)",
    "shown, not compared (*): what told of the fault first; how long ranks got to end, which is less where that was a",
    "  standstill; from where they got their snapshots (a machine's memory outlives its agent only where the next node",
    "  is on the same machine)",
    "ranks of one verdict are in ascending order (those that were killed together come in any)",
)

_NODE = re.compile(r"\bn\d+\b")


@dataclass(frozen=True, kw_only=True)
class Decided:
    """About one incident: a word or sentence for each of `COMPARED` and `SHOWN`; "" where nothing was decided."""

    words: dict[str, str] = field(default_factory=dict)

    def __getitem__(self, name: str) -> str:
        return self.words.get(name, "")


def decided(records: Iterable[Record]) -> tuple[Decided, ...]:
    """The incidents of a run, in order, and at last how it was stopped, if it was."""
    run, stop = _Run(), None
    for record in records:
        if isinstance(record.event, StopRequested) and stop is None:
            stop = _Stop()
        if stop is not None:
            stop.take(record)
        run.take(record)
    said = [each.words() for each in (*run.incidents.values(), *([stop] if stop is not None else []))]
    return tuple(Decided(words=each) for each in said)


class _Stop:
    """By whoever gave the nodes: what of the last step is written, and how the run ends."""

    def __init__(self) -> None:
        self._asked: dict[int, set[int]] = {}  # step: ranks
        self._stops: set[str] = set()
        self._ended = ""

    def take(self, record: Record) -> None:
        for action in record.actions:
            if isinstance(action, act.PersistSnapshot) and action.is_last:
                self._asked.setdefault(action.step, set()).update(action.ranks)
            elif isinstance(action, act.StopWorkers):
                self._stops.add(f"generation {action.generation} by signal {action.signal}")
            elif isinstance(action, act.Finish):
                self._ended = f"{action.outcome}, code {action.exit_code}"

    def words(self) -> dict[str, str]:
        newest = sorted(self._asked[max(self._asked)]) if self._asked else []
        found = {"stopped": "; ".join(sorted(self._stops)), "ended": self._ended}
        found["saved"] = f"the last step of ranks {' '.join(map(str, newest))}" if newest else "nothing"
        return {name: found.get(name, "") for name in (*COMPARED, *SHOWN)}


class _Incident:
    def __init__(self, first_sign: str, slots: dict[str, int]) -> None:
        self._first_sign, self._slots = first_sign, dict(slots)
        self._verdict: Verdict | None = None
        self._decision: Decision | None = None
        self._stops: set[str] = set()
        self._graces: set[str] = set()
        self._nodes: list[str] = []
        self._starts: list[act.StartWorkers] = []
        self._origins: dict[int, str] = {}
        self._closed: act.IncidentClosed | None = None

    @property
    def is_open(self) -> bool:
        return self._closed is None

    def conclude(self, action: act.Concluded) -> None:
        self._verdict, self._decision = action.verdict, action.decision

    def stop(self, action: act.StopWorkers) -> None:
        saved = f", and {action.save_s:g} s to save before" if action.save_s else ""
        self._stops.add(f"generation {action.generation} by signal {action.signal}")
        self._graces.add(f"{action.grace_s:g} s{saved}")

    def give_up(self, action: act.EvictNode | act.ReleaseNode) -> None:
        words = "release" if isinstance(action, act.ReleaseNode) else "evict"
        if isinstance(action, act.EvictNode) and action.is_silent:
            words = "evict as silent"
        words = f"{words} {self._name(action.node)}"
        if words not in self._nodes:
            self._nodes.append(words)

    def start(self, action: act.StartWorkers, origin: str) -> None:
        if self._starts and self._starts[-1].generation != action.generation:
            self._starts.clear()  # a generation that did not come up: the one that ends the incident counts
            self._origins.clear()
        self._starts.append(action)
        self._origins[action.slot] = "" if self._slots.get(action.node) == action.slot else f": {origin}"

    def close(self, action: act.IncidentClosed) -> None:
        self._closed = action

    def words(self) -> dict[str, str]:
        found = {"first sign": self._first_sign, "nodes": ", ".join(sorted(self._nodes))}
        found |= {"stopped": "; ".join(sorted(self._stops)), "grace": "; ".join(sorted(self._graces))}
        found |= self._judged() | self._begun()
        if self._closed is not None:
            found["closed"] = self._closed.outcome
            found["lost steps"] = "not measured" if self._closed.lost_steps is None else str(self._closed.lost_steps)
        return {name: found.get(name, "") for name in (*COMPARED, *SHOWN)}

    def _judged(self) -> dict[str, str]:
        verdict, decision = self._verdict, self._decision
        if verdict is None or decision is None:
            return {}
        return {
            "code": verdict.code,
            "party": str(verdict.blame),
            "confidence": str(verdict.confidence),
            "certainty": str(verdict.certainty),
            "ranks": " ".join(map(str, sorted(verdict.ranks))),
            "slot": "" if verdict.node is None else self._name(verdict.node),
            "rule": decision.rule,
            "chosen": self._plain(decision.chosen),
            "not done": "; ".join(self._plain(each.what) for each in decision.refused),
            "then": self._plain(decision.then),
        }

    def _begun(self) -> dict[str, str]:
        if not self._starts:
            return {}
        starts = sorted(self._starts, key=lambda each: each.slot)
        first = starts[0]
        slots = ", ".join(
            f"slot {each.slot} ranks {_span(each.first_rank, each.num_ranks)}{self._origins[each.slot]}"
            for each in starts
        )
        fetched = [f"rank {each.rank} from {self._slot_of(each.node)}" for one in starts for each in one.fetch]
        return {
            "started": f"generation {first.generation} of {first.world_size} ranks: {slots}",
            "resumed": self._resumed(first),
            "snapshots": "; ".join(fetched) or "each where its rank is",
        }

    def _resumed(self, first: act.StartWorkers) -> str:
        if first.restore_path:
            return "from the persistent tier"
        if first.resume_step is None:
            return "from the start"
        if self._closed is None or self._closed.resumed_step is None:
            return "from memory"
        return f"from memory, {self._closed.resumed_step - first.resume_step} after the restored step"

    def _slot_of(self, node: str) -> str:
        """By the places of the coming generation."""
        return next((f"slot {each.slot}" for each in self._starts if each.node == node), self._name(node))

    def _name(self, node: str) -> str:
        return f"slot {self._slots[node]}" if node in self._slots else "a standby"

    def _plain(self, text: str) -> str:
        return _NODE.sub(lambda found: self._name(found[0]), text)


class _Run:
    def __init__(self) -> None:
        self.incidents: dict[str, _Incident] = {}
        self._slots: dict[str, int] = {}  # nodes of the newest generation
        self._joined: set[str] = set()
        self._given_up: list[act.EvictNode | act.ReleaseNode] = []  # while no incident is open: its loss opens one

    def take(self, record: Record) -> None:
        for action in record.actions:
            self._note(action, record)
        if isinstance(record.event, NodeJoined):
            self._joined.add(record.event.node)

    def _note(self, action: act.Action, record: Record) -> None:
        if isinstance(action, act.IncidentOpened):
            first_sign = type(record.event).__name__
            incident = self.incidents[action.incident] = _Incident(first_sign, self._slots)
            for each in self._given_up:
                incident.give_up(each)
            self._given_up.clear()
            return
        if isinstance(action, act.Concluded | act.IncidentClosed):
            incident = self.incidents[action.incident]
            incident.conclude(action) if isinstance(action, act.Concluded) else incident.close(action)
            return
        if isinstance(action, act.EvictNode | act.ReleaseNode) and not any(self._open()):
            self._given_up.append(action)
        for incident in self._open():
            if isinstance(action, act.StopWorkers):
                incident.stop(action)
            elif isinstance(action, act.EvictNode | act.ReleaseNode):
                incident.give_up(action)
            elif isinstance(action, act.StartWorkers):
                incident.start(action, "a standby" if action.node in self._joined else "a new node")
        if isinstance(action, act.StartWorkers):
            self._slots = {node: slot for node, slot in self._slots.items() if slot != action.slot}
            self._slots[action.node] = action.slot

    def _open(self) -> Iterator[_Incident]:
        return (each for each in self.incidents.values() if each.is_open)


def _span(first: int, number: int) -> str:
    return str(first) if number == 1 else f"{first}-{first + number - 1}"
