"""Who is alive in a run and which incidents it had, read from its journal while it grows. Called by kills.py.

Answers from the file alone, with a parser of its own, so that the benchmark checks everstep's journal instead of
trusting its reader. Must not write, and must never act on a line that is not complete.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(slots=True, kw_only=True)
class Closed:
    """One incident's end."""

    incident: str
    outcome: str
    recovered_at: float | None
    lost_steps: int | None


@dataclass(slots=True)
class Population:
    """The run as its journal tells it. `holes` counts records whose number does not follow the one before."""

    generation: int = -1
    ranks: dict[int, int] = field(default_factory=dict)  # rank: pid, of the newest generation
    agents: dict[str, int] = field(default_factory=dict)  # node: pid
    controllers: list[tuple[float, int]] = field(default_factory=list)  # (started at, pid), in order
    opened: list[str] = field(default_factory=list)
    closed: list[Closed] = field(default_factory=list)
    finished: str | None = None
    last_seq: int = 0
    holes: int = 0

    @property
    def num_open(self) -> int:
        return len(set(self.opened) - {one.incident for one in self.closed})

    def take(self, record: dict[str, Any]) -> None:
        """Fold one record."""
        self.holes += record["seq"] != self.last_seq + 1
        self.last_seq = record["seq"]
        self._take_event(record["event"])
        for action in record.get("actions", ()):
            self._take_action(action)

    def _take_event(self, event: dict[str, Any]) -> None:
        match event["type"]:
            case "ControllerStarted":
                self.controllers.append((event["at"], event["pid"]))
            case "NodeJoined":
                self.agents[event["node"]] = event["pid"]
            case "NodeLost":
                self.agents.pop(event["node"], None)
            case "WorkersStarted":
                if event["generation"] > self.generation:
                    self.generation, self.ranks = event["generation"], {}
                if event["generation"] == self.generation:
                    self.ranks.update({one["rank"]: one["pid"] for one in event["started"]})

    def _take_action(self, action: dict[str, Any]) -> None:
        match action["type"]:
            case "IncidentOpened":
                self.opened.append(action["incident"])
            case "IncidentClosed":
                self.closed.append(
                    Closed(
                        incident=action["incident"],
                        outcome=action["outcome"],
                        recovered_at=action.get("recovered_at"),
                        lost_steps=action.get("lost_steps"),
                    )
                )
            case "Finish":
                self.finished = action["outcome"]


class JournalTail:
    """Follows one journal. `read` folds what is new and gives the population."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self.population = Population()

    def read(self) -> Population:
        if not self._path.exists():
            return self.population
        if self._path.stat().st_size < self._offset:
            # A new controller cuts a torn tail, but never a whole line: those were read already.
            raise ValueError(f"{self._path} got shorter than {self._offset} bytes that were complete lines")
        with self._path.open("rb") as stream:
            stream.seek(self._offset)
            data = stream.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        for line in whole.splitlines():
            record = json.loads(line)
            if "event" in record:  # the first line is the header
                self.population.take(record)
        return self.population
