"""Numbers and digests of this node's ranks, on their way to the controller's watches.

What a rank says of its steps is collected and reported twice a second, at once where the rank calls it urgent. The logs
of ranks that say nothing are read for the same. Called by the node; it decides nothing, and garbage from a rank costs
that frame only.
"""

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

from everstep.agent.ranks.workers import Group, Worker
from everstep.agent.watching.log_points import LogPoints
from everstep.model.events import Event
from everstep.model.facts import NumberPoint, RankCounts, RankDigest, RankNumbers
from everstep.model.observations import DigestsReported, NumbersReported

LOOK_S = 0.5
MAX_POINTS = 256
"""Per rank and report. More come only while nothing is reported; then the newest count."""

MAX_VALUES = 64
MAX_REPLICAS = 1 << 17
MAX_TEXT = 300
MAX_RUNS = 512
MAX_RUN = 1 << 16

_log = logging.getLogger(__name__)


class Observing:
    def __init__(self, node: str, report: Callable[[Event], None]) -> None:
        self._node = node
        self._report = report
        self._generation = -1
        self._told: dict[int, list[NumberPoint]] = {}  # rank -> what it said and was not reported yet
        self._logs: dict[int, LogPoints | None] = {}  # None: the rank says itself how it trains

    def take(self, group: Group, worker: Worker, frame: dict[str, Any]) -> None:
        """A rank's frame. Raises ValueError, TypeError, KeyError or OverflowError when it is none of ours."""
        if group.workers.get(worker.rank) is not worker:
            return  # of a group that was ended
        if "numbers" in frame:
            self._take_numbers(group, worker, frame)
        elif "counts" in frame:
            self._take_counts(group, worker, frame["counts"])
        elif "digest" in frame:
            self._take_digest(group, worker, frame["digest"])

    def _take_numbers(self, group: Group, worker: Worker, frame: dict[str, Any]) -> None:
        points = [_point(raw) for raw in list(frame["numbers"])[-MAX_POINTS:]]
        self._begin(group.generation)
        self._logs[worker.rank] = None
        self._told.setdefault(worker.rank, []).extend(points)
        del self._told[worker.rank][:-MAX_POINTS]
        if frame.get("urgent"):
            self._flush()

    def _take_digest(self, group: Group, worker: Worker, raw: dict[str, Any]) -> None:
        told, replicas = dict(raw["values"]), list(raw["replicas"])
        if len(told) > MAX_VALUES or len(replicas) > MAX_REPLICAS:
            raise ValueError(f"{len(told)} digests of {len(replicas)} replicas; at most {MAX_VALUES}, {MAX_REPLICAS}")
        values = {str(name)[:MAX_TEXT]: str(value)[:MAX_TEXT] for name, value in told.items()}
        digest = RankDigest(
            rank=worker.rank,
            step=_int(raw["step"]),
            values=values,
            replicas=tuple(_int(rank) for rank in replicas),
            stride=_int(raw.get("stride", 0)),
            missing=str(raw.get("missing", ""))[:MAX_TEXT],
        )
        self._report(
            DigestsReported(at=time.time(), node=self._node, generation=group.generation, digests=(digest,)),
        )

    def _take_counts(self, group: Group, worker: Worker, raw: Any) -> None:  # noqa: ANN401 - JSON
        runs = tuple(_run(each) for each in list(raw)[-MAX_RUNS:])
        counts = (RankCounts(rank=worker.rank, runs=runs),)
        at, generation = time.time(), group.generation
        self._report(DigestsReported(at=at, node=self._node, generation=generation, digests=(), counts=counts))

    def look(self, group: Group) -> None:
        """Report what was said since the last look; read the logs of those who say nothing."""
        self._look_at(group, list(group.workers.values()))

    def end(self, group: Group, worker: Worker) -> None:
        """Read, for the last time, the log of a rank that has ended. Raises nothing: its exit is reported."""
        try:
            self._look_at(group, [worker])
        except Exception:
            _log.exception("the last numbers of rank %d", worker.rank)

    def _look_at(self, group: Group, workers: Sequence[Worker]) -> None:
        self._begin(group.generation)
        self._flush()
        found = []
        for worker in workers:
            if worker.rank not in self._logs:
                self._logs[worker.rank] = LogPoints((worker.paths.stdout, worker.paths.stderr))
            log = self._logs[worker.rank]
            points = log.new() if log is not None else ()
            if points:
                found.append(RankNumbers(rank=worker.rank, source="log", points=points))
        self._report_all(found)

    def _flush(self) -> None:
        told, self._told = self._told, {}
        self._report_all([RankNumbers(rank=rank, source="step", points=tuple(all_)) for rank, all_ in told.items()])

    def _report_all(self, numbers: list[RankNumbers]) -> None:
        if numbers:
            self._report(
                NumbersReported(at=time.time(), node=self._node, generation=self._generation, numbers=tuple(numbers))
            )

    def _begin(self, generation: int) -> None:
        if generation != self._generation:
            self._generation = generation
            self._told.clear()
            self._logs.clear()


def _point(raw: Any) -> NumberPoint:  # noqa: ANN401 - JSON
    step, loss, grad_norm = raw
    return NumberPoint(
        step=None if step is None else _int(step),
        loss=None if loss is None else float(loss),
        grad_norm=None if grad_norm is None else float(grad_norm),
    )


def _run(raw: Any) -> tuple[int, int, int, int]:  # noqa: ANN401 - JSON
    first, number, optimizer, collectives = (_int(value) for value in raw)
    if first < 0 or not 0 < number <= MAX_RUN or optimizer < 0 or collectives < -1:
        raise ValueError("no run of steps")
    return first, number, optimizer, collectives


def _int(raw: Any) -> int:  # noqa: ANN401 - JSON
    value = int(raw)
    if not -(2**63) <= value < 2**63:
        raise ValueError("a number that the wire cannot carry")
    return value
