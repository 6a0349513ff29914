"""Results of examinations on simulated machines: a bad machine fails with some chance, a good one never."""

from collections.abc import Mapping, Sequence
from random import Random

from everstep.model.actions import ExamineNode
from everstep.model.events import NodeExamined
from everstep.model.facts import ExamKind
from everstep.simulate.fleet.machines import Cell
from everstep.simulate.fleet.setup import Setup


class Examiner:
    def __init__(self, setup: Setup, dice: Random) -> None:
        self._setup = setup
        self._dice = dice

    @staticmethod
    def is_replay(exam: ExamineNode) -> bool:
        return exam.kind is ExamKind.REPLAY

    def answers(
        self, exams: Sequence[ExamineNode], cell_of: Mapping[str, Cell], at: float, took_s: float
    ) -> list[NodeExamined]:
        """Return the results of all nodes that are examined at the same time. A node's failure is seen by every group
        that it is in."""
        failing = {exam.node for exam in exams if self._fails(cell_of.get(exam.node), exam.num_rounds)}
        return [self._answer(exam, failing, at, took_s) for exam in exams if exam.node in cell_of]

    def _fails(self, cell: Cell | None, num_rounds: int) -> bool:
        """Each fault shows in each round by itself."""
        if cell is None:
            return False
        tries = len(cell.faults) * max(1, num_rounds)
        return any(self._dice.random() < self._setup.exam_recall for _ in range(tries))

    def _answer(self, exam: ExamineNode, failing: set[str], at: float, took_s: float) -> NodeExamined:
        bad = tuple(node for node in exam.group if node in failing)
        names_them = exam.kind in (ExamKind.SELF, ExamKind.ALL_TO_ALL)
        is_digest = exam.kind in (ExamKind.ALIGNMENT, ExamKind.REPLAY)
        passed = exam.node not in failing if names_them or is_digest else not bad
        digest = ""
        if is_digest:
            is_spoiled = bool(bad) if exam.kind is ExamKind.REPLAY else exam.node in failing
            digest = (
                f"{exam.node if exam.kind is ExamKind.ALIGNMENT else exam.group_index} differs"
                if is_spoiled
                else "same"
            )
            passed = True if exam.kind is ExamKind.ALIGNMENT else not is_spoiled
        why = "it computes and talks as it should" if passed else "it failed"
        return NodeExamined(
            at=at,
            node=exam.node,
            generation=exam.generation,
            exam=exam.exam,
            passed=passed,
            why=f"simulated: {why}",
            blames=() if passed or not names_them else (exam.node,),
            digest=digest,
            took_s=took_s,
        )
