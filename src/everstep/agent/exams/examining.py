"""Examinations of this node while the job stands still: starts the programs, holds them to their time, answers once.

One at a time: a newer one, a start, a stop and the end of the run each end what is under way, and nothing of it runs
on. What is our own failure, or not done in time, is answered as unknown: it never speaks against the node. The programs
are in `preflight.examination`.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence

from everstep.agent.exams.examinees import Examinee, Examinees
from everstep.agent.processes.ailments import Ailments
from everstep.agent.processes.reaping import Reaper
from everstep.agent.ranks.starting import Home
from everstep.agent.ranks.warden import Warden
from everstep.errors import EverstepError
from everstep.model.actions import ExamineNode
from everstep.model.events import Event, NodeExamined
from everstep.model.facts import ExamKind
from everstep.preflight.examination.request import Request, Said

MARGIN_SHARE = 0.1
"""Share of the limit kept as a margin: the processes report what they know before they are killed."""

_MAX_KEPT = 64
"""Answers kept, for when they are asked for again."""

_log = logging.getLogger(__name__)


class Examiner:
    """One per agent."""

    def __init__(
        self,
        node: str,
        home: Home,
        *,
        reaper: Reaper,
        warden: Warden,
        ailments: Ailments,
        report: Callable[[Event], None],
    ) -> None:
        self._node, self._home = node, home
        self._reaper, self._warden, self._ailments = reaper, warden, ailments
        self._report = report
        self._answers: dict[str, NodeExamined] = {}
        self._current: ExamineNode | None = None
        self._task: asyncio.Task[None] | None = None
        self._why_ended = ""

    def take(self, action: ExamineNode, why_not: str) -> None:
        """Begin it, or answer again. `why_not`: it cannot be done now."""
        answer = self._answers.get(action.exam)
        if answer is not None:
            self._report(answer)
        elif why_not:
            self._answer(action, Said(passed=None, why=f"not examined: {why_not}"), 0.0)
        elif self._current is None or self._current.exam != action.exam:
            before, self._current = self._task, action
            self._cancel(f"examination {action.exam} came")
            self._task = asyncio.ensure_future(self._examine(action, before))

    async def end(self, why: str) -> None:
        """End what is under way; nothing of it runs when this returns."""
        self._cancel(why)
        if self._task is not None:
            await asyncio.wait((self._task,))

    def _cancel(self, why: str) -> None:
        if self._task is not None and not self._task.done():
            self._why_ended = why
            self._task.cancel()

    async def _examine(self, action: ExamineNode, before: "asyncio.Task[None] | None") -> None:
        began = time.monotonic()
        folder = self._home.run_dir / "nodes" / self._node / "exams" / action.exam.replace("/", "-")
        examinees = Examinees(self._home, self._reaper, self._warden, self._ailments, folder)
        failure = ""
        try:
            async with asyncio.timeout(action.limit_s):
                if before is not None:
                    await asyncio.wait((before,))
                examinees.start(self._requests(action))
                await examinees.wait()
        except TimeoutError:
            failure = f"not done within {action.limit_s:g} s"
        except asyncio.CancelledError:
            failure = f"ended before it was done: {self._why_ended or 'the agent ends'}"
        except (EverstepError, OSError) as error:
            failure = f"the examination could not be started: {error}"
        except Exception as error:
            _log.exception("examination %s", action.exam)
            failure = f"our own examination failed: {type(error).__name__}: {error}"
        await examinees.end()
        if self._current is action:
            self._current = None
        self._answer(action, summed_up(action, examinees.all, failure), time.monotonic() - began)

    def _answer(self, action: ExamineNode, said: Said, took_s: float) -> None:
        answer = NodeExamined(
            at=time.time(),
            node=self._node,
            generation=action.generation,
            exam=action.exam,
            passed=said.passed,
            why=said.why,
            blames=said.blames,
            digest=said.digest,
            took_s=took_s,
        )
        self._answers[action.exam] = answer
        while len(self._answers) > _MAX_KEPT:
            del self._answers[next(iter(self._answers))]
        _log.info("examined: %s", answer)
        self._report(answer)

    def _requests(self, action: ExamineNode) -> list[Request]:
        """One per process. Raises EverstepError."""
        if self._node not in action.group:
            raise EverstepError(f"{self._node} is not in the group {', '.join(action.group)}")
        is_alone = action.kind is ExamKind.SELF
        return [
            Request(
                exam=action.exam,
                kind=action.kind,
                group=(self._node,) if is_alone else action.group,
                group_index=action.group_index,
                position=0 if is_alone else action.group.index(self._node),
                local_rank=local_rank,
                num_ranks=1 if is_alone else action.num_ranks,
                store_host=action.store_host,
                store_port=action.store_port,
                limit_s=action.limit_s * (1 - MARGIN_SHARE),
                shape=action.shape,
                num_rounds=action.num_rounds,
                inspection=str(self._home.run_dir / "nodes" / self._node / "inspection.json"),
            )
            for local_rank in range(1 if is_alone else action.num_ranks)
        ]


def summed_up(action: ExamineNode, examinees: Sequence[Examinee], failure: str) -> Said:
    """Combine the answers of the node's processes into the node's own: one that saw a failure is enough; all have to
    have passed. `failure`: why the examination is not complete."""
    answers = [each.said for each in examinees if each.said is not None]
    failed = [said for said in answers if said.passed is False]
    if failed:
        blames = tuple(node for node in action.group if any(node in said.blames for said in failed))
        return Said(passed=False, why=failed[0].why, blames=blames, digest=failed[0].digest)
    unknown = [said.why for said in answers if said.passed is None]
    silent = [_how(at, each) for at, each in enumerate(examinees) if each.said is None]
    if failure or unknown or silent:
        return Said(passed=None, why=f"{action.kind}: {failure}" if failure else (silent or unknown)[0])
    return answers[0]


def _how(local_rank: int, examinee: Examinee) -> str:
    ended = examinee.ended
    if ended is None:
        return f"process {local_rank} of the examination says nothing"
    how = f"was killed by signal {ended.signal}" if ended.signal is not None else f"ended with exit code {ended.code}"
    return f"process {local_rank} of the examination {how} before it said anything"
