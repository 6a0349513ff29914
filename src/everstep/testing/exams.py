"""Examinations of a cluster without machines: which node fails which check, always or now and then."""

import random

from everstep.model.actions import ExamineNode
from everstep.model.events import NodeExamined
from everstep.model.facts import ExamKind

SAME = "5a3e"
"""What sound machines compute."""


class FakeExams:
    """`bad`: node to what it fails at, and with which probability in one replay or examination."""

    def __init__(self, seed: int = 0) -> None:
        self.bad: dict[str, dict[ExamKind, float]] = {}
        self.mute: set[str] = set()  # nodes that cannot be examined
        self._chance = random.Random(seed)
        self._replays: dict[tuple[str, int], bool] = {}  # (exam, group) -> whether something differed

    def break_at(self, node: str, kinds: str, chance: float = 1.0) -> None:
        """`kinds`: "self", "all-gather,alignment", or "replay". Raises ValueError for what is no kind."""
        self.bad[node] = {ExamKind(kind): chance for kind in kinds.split(",")}

    def answer(self, action: ExamineNode, at: float) -> NodeExamined:
        passed, why, digest = self._look(action)
        return NodeExamined(
            at=at,
            node=action.node,
            generation=action.generation,
            exam=action.exam,
            passed=passed,
            why=why,
            digest=digest,
            took_s=0.1,
        )

    def _look(self, action: ExamineNode) -> tuple[bool | None, str, str]:
        kind, group = action.kind, action.group
        if action.node in self.mute:
            return None, "its processes could not be made", ""
        if kind is ExamKind.REPLAY:
            differs = self._replay(action)
            return not differs, "replays differed" if differs else "all replays were equal", "" if differs else SAME
        if kind is ExamKind.ALIGNMENT:
            return True, "one step was computed", f"bad-{action.node}" if self._fails(action.node, kind) else SAME
        failing = [node for node in group if self._fails(node, kind)]
        return (False, "the data was not what was sent", "") if failing else (True, "as it should be", "")

    def _replay(self, action: ExamineNode) -> bool:
        key = (action.exam, action.group_index)
        if key not in self._replays:
            self._replays[key] = any(
                self._fails(node, ExamKind.REPLAY) for node in action.group for _ in range(action.num_rounds)
            )
        return self._replays[key]

    def _fails(self, node: str, kind: ExamKind) -> bool:
        chance = self.bad.get(node, {}).get(kind, 0.0)
        return chance > 0 and self._chance.random() < chance
