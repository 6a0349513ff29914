"""Examinations by real agents: every kind, on sound nodes and on bad ones; what is late, killed or ended in the middle;
and that nothing of them is left. A fake controller asks; the processes, the store and the faults are real."""

import asyncio
import contextlib
import functools
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from fake_controller import Bench, bench, is_alive, kill, processes_of

from everstep.model import events
from everstep.model.actions import ExamineNode, Inject
from everstep.model.facts import ExamKind

LIMIT_S = 150.0
"""Of an examination, which a machine with a load of 40 takes a minute for."""

SOON_S = 22.5
AGAIN_S = 15.0
LAYOUT = (("pp", 2), ("dp", 8), ("tp", 2))
STEPS = "import time\nprint('up', flush=True)\ntime.sleep(600)\n"
TRAIN = """
import time
import torch
model = torch.nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
while True:
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    time.sleep(0.05)
"""


pytestmark = pytest.mark.timeout(900)


class Hall:
    """A bench with several nodes, and one store for all examinations."""

    def __init__(self, made: Bench) -> None:
        self.made = made
        self.port = made.store()
        self.num_exams = 0
        self.asked: dict[tuple[str, str], ExamineNode] = {}

    async def ask(self, kind: ExamKind, group: tuple[str, ...], *, to: tuple[str, ...] = (), **more: Any) -> str:
        self.num_exams += 1
        exam = f"i1/{self.num_exams}"
        for node in to or group:
            await self.made.controller.send_to(node, self.action(kind, group, node, exam, **more))
        return exam

    def action(self, kind: ExamKind, group: tuple[str, ...], node: str, exam: str, **more: Any) -> ExamineNode:
        given = {"num_ranks": 2, "limit_s": LIMIT_S, "shape": LAYOUT, "generation": 0, "group_index": 0, **more}
        action = ExamineNode(
            why="test", node=node, exam=exam, kind=kind, group=group, store_host="127.0.0.1", store_port=self.port,
            **given,
        )  # fmt: skip
        self.asked[exam, node] = action
        return action

    async def answer(self, exam: str, node: str) -> events.NodeExamined:
        """Asked again now and then, as a controller does after a lost connection."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(AGAIN_S):
                    return await self.made.controller.wait(
                        events.NodeExamined, lambda e: e.exam == exam and e.node == node
                    )
            if (exam, node) in self.asked:
                await self.made.controller.send_to(node, self.asked[exam, node])

    async def examine(self, kind: ExamKind, group: tuple[str, ...], **more: Any) -> list[events.NodeExamined]:
        exam = await self.ask(kind, group, **more)
        return [await self.answer(exam, node) for node in group]

    async def miscompute(self, node: str, **options: float | str) -> None:
        drill = Inject(why="test", drill=f"d-{node}", kind="miscompute", node=node, generation=-1, options=options)
        await self.made.controller.send_to(node, drill)

    async def aligned(self, nodes: tuple[str, ...]) -> list[events.NodeExamined]:
        """All at once, each for itself."""
        self.num_exams += 1
        exam = f"i1/{self.num_exams}"
        for index, node in enumerate(nodes):
            action = self.action(ExamKind.ALIGNMENT, (node,), node, exam, group_index=index)
            await self.made.controller.send_to(node, action)
        return [await self.answer(exam, node) for node in nodes]

    async def running(self, node: str, number: int) -> list[int]:
        """Processes of an examination on that node, once so many do their part."""
        found: list[int] = await asyncio.to_thread(
            _await, lambda: len(found := self.running_now(node)) >= number and found
        )
        return found

    def running_now(self, node: str) -> list[int]:
        folder = str(self.made.run_dir / "nodes" / node / "exams")
        return [pid for pid in processes_of(self.made.run_dir) if _cwd(pid).startswith(folder)]


def _cwd(pid: int) -> str:
    try:
        return str(Path(f"/proc/{pid}/cwd").readlink())
    except OSError:
        return ""


def _await(look: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + LIMIT_S
    while not (found := look()):
        assert time.monotonic() < deadline
        time.sleep(0.005)
    return found


@contextlib.asynccontextmanager
async def hall(tmp_path: Path, nodes: tuple[str, ...], program: str = STEPS, **more: Any) -> AsyncIterator[Hall]:
    (tmp_path / "train.py").write_text(program)
    (tmp_path / "sitecustomize.py").write_text("import uncompiled\n")  # an examination's step has an optimizer
    env = {"PYTHONPATH": str(tmp_path), **more.pop("env", {})}
    async with bench(tmp_path, "train.py", start=False, env=env, **more) as made:
        for node in nodes:
            made.start_agent(node)
        for node in nodes:
            await made.controller.wait(events.NodeJoined, lambda e, node=node: e.node == node)
        yield Hall(made)


def play(story: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(story())


def test_sound_nodes_pass_and_one_that_computes_wrongly_is_found(tmp_path):
    """Wrong always: its digest is not the others'. Now and then: it is not its own of other rounds, and it is named."""

    async def story() -> None:
        async with hall(tmp_path, ("n0", "n1")) as made:
            (own,) = await made.examine(ExamKind.SELF, ("n0",))
            assert (own.passed, own.blames, own.digest, own.generation) == (True, (), "", 0), own.why
            (between,) = await made.examine(ExamKind.ALL_TO_ALL, ("n0",))
            assert (between.passed, between.blames) == (True, ()), between.why
            pair = await made.examine(ExamKind.ALL_GATHER, ("n0", "n1"))
            assert [answer.passed for answer in pair] == [True, True], pair
            both = await made.examine(ExamKind.REPLAY, ("n0", "n1"), num_rounds=3)
            assert [answer.passed for answer in both] == [True, True], both
            assert "pp 2, dp 1, tp 2 on n0, n1, 3 rounds: all alike" in both[0].why
            assert both[0].digest == both[1].digest != ""

            await made.miscompute("n1")
            sound, sick = await made.aligned(("n0", "n1"))
            assert (sound.passed, sound.digest) == (True, both[0].digest)  # spread otherwise, the same computation
            assert sick.digest != sound.digest
            await made.miscompute("n1", chance=0.3, seed=2)
            replay = await made.examine(ExamKind.REPLAY, ("n0", "n1"), num_rounds=8, shape=(("tp", 2), ("dp", 2)))
            assert [(answer.passed, answer.blames) for answer in replay] == [(False, ("n1",))] * 2, replay
            assert "other bits than the others, first on n1" in replay[0].why
            assert replay[0].digest == replay[1].digest
            assert not [pid for node in ("n0", "n1") for pid in made.running_now(node)]

    play(story)


@pytest.mark.soak
def test_the_partner_is_to_blame_when_it_does_not_come_or_dies_or_stands_still(tmp_path):
    async def story() -> None:
        async with hall(tmp_path, ("n0", "n1")) as made:
            absent = await made.ask(ExamKind.ALL_GATHER, ("n0", "n1"), to=("n0",), limit_s=3.0)
            answer = await made.answer(absent, "n0")
            assert (answer.passed, answer.blames) == (False, ("n1",)), answer
            assert "n1 did not come within" in answer.why

            for signum in (signal.SIGKILL, signal.SIGSTOP):
                exam = await made.ask(ExamKind.REPLAY, ("n0", "n1"), num_rounds=100_000, limit_s=20.0)
                victims = await made.running("n1", 2)
                await asyncio.to_thread(_await, functools.partial(_has_connected, victims[0]))
                os.kill(victims[0], signum)
                there, here = await made.answer(exam, "n0"), await made.answer(exam, "n1")
                assert (there.passed, there.blames) == (False, ("n1",)), (signum, there)
                assert "n1 fell silent in the middle" in there.why
                assert here.passed is None, (signum, here)  # of its own process a node says that it does not know
                assert not any(is_alive(pid) for pid in victims)

    play(story)


def _has_connected(pid: int) -> bool:
    """It has sockets to its peers, so it is in the middle."""
    with contextlib.suppress(OSError):
        links = [str(fd.readlink()) for fd in Path(f"/proc/{pid}/fd").iterdir()]
        return sum(link.startswith("socket:") for link in links) >= 6
    return False


@pytest.mark.soak
def test_what_ends_an_examination_and_what_is_answered_then(tmp_path):
    """A newer one, StartWorkers, StopWorkers: nothing of it runs on; it is answered, and again when asked again."""

    async def story() -> None:
        async with hall(tmp_path, ("n0",)) as made:
            first = await made.ask(ExamKind.REPLAY, ("n0",), num_rounds=100_000)
            running = await made.running("n0", 2)
            (second,) = await made.examine(ExamKind.SELF, ("n0",))
            ended = await made.answer(first, "n0")
            assert second.passed is True
            assert (ended.passed, "examination i1/2 came" in ended.why) == (None, True), ended
            assert not any(is_alive(pid) for pid in running)

            third = await made.ask(ExamKind.REPLAY, ("n0",), num_rounds=100_000)
            running = await made.running("n0", 2)
            await made.made.start_workers(1)
            started = await made.made.controller.wait(events.WorkersStarted)
            assert (await made.answer(third, "n0")).why == "replay: ended before it was done: generation 1 starts"
            assert not any(is_alive(pid) for pid in running)
            assert {each.how for each in started.started} == {"fresh"}

            old = await made.ask(ExamKind.SELF, ("n0",), generation=0)  # of a generation that is over: dropped
            (refused,) = await made.examine(ExamKind.SELF, ("n0",), generation=1)
            assert (refused.passed, refused.why) == (None, "not examined: ranks of the job run on this node")
            await made.made.stop_workers(1, grace_s=0.0)

            fifth = await made.ask(ExamKind.REPLAY, ("n0",), num_rounds=100_000, generation=1)
            running = await made.running("n0", 2)
            await made.made.stop_workers(2)
            assert (await made.answer(fifth, "n0")).passed is None
            assert not any(is_alive(pid) for pid in running)

            again = made.action(ExamKind.SELF, ("n0",), "n0", "i1/2", generation=2)
            await made.made.controller.send(again)
            told = await made.made.controller.wait(events.NodeExamined, skip=len(made.made.controller.events))
            assert (told.exam, told.at) == ("i1/2", second.at)
            assert not [e for e in made.made.controller.events if isinstance(e, events.NodeExamined) and e.exam == old]

    play(story)


@pytest.mark.soak
def test_at_the_limit_it_is_unknown_and_nothing_runs_on(tmp_path):
    """Also where the agent itself is killed in the middle."""

    async def story() -> None:
        async with hall(tmp_path, ("n0",), env={"EVERSTEP_TWINS": "off"}) as made:
            began = time.monotonic()
            (answer,) = await made.examine(ExamKind.ALIGNMENT, ("n0",), limit_s=0.5)
            assert (answer.passed, answer.why) == (None, "alignment: not done within 0.5 s")
            assert time.monotonic() - began < SOON_S
            exam = await made.ask(ExamKind.SELF, ("n9",), to=("n0",))
            assert "n0 is not in the group n9" in (await made.answer(exam, "n0")).why
            await made.ask(ExamKind.REPLAY, ("n0",), num_rounds=100_000)
            running = await made.running("n0", 2)
            assert made.made.agent is not None
            kill(made.made.agent.pid)
            made.made.agent.wait()
            await asyncio.to_thread(_await, lambda: not any(is_alive(pid) for pid in running))

    play(story)


@pytest.mark.soak
def test_a_sick_machine_is_sick_in_the_job_as_well(tmp_path):
    """The drill reaches a rank that runs and the one of the next generation, and only the machine's first device."""

    async def story() -> None:
        async with hall(tmp_path, ("n0",), TRAIN) as made:
            await made.made.start_workers(0)
            await made.made.controller.wait(events.MarksReported)
            await made.miscompute("n0", result="nan")
            for generation in (0, 1):
                if generation == 1:
                    await made.made.stop_workers(0, grace_s=0.0)
                    await made.made.start_workers(1)
                said = await asyncio.to_thread(_await, functools.partial(_wrong_step, made.made, generation))
                assert "is now nan" in said
                assert "drill" not in made.made.log(generation, 1, "stderr")
            assert not [e for e in made.made.controller.events if isinstance(e, events.DrillFailed)]

    play(story)


def _wrong_step(made: Bench, generation: int) -> str:
    return next((line for line in made.log(generation, 0, "stderr").splitlines() if "after step" in line), "")


@pytest.mark.soak
def test_a_node_of_one_rank_has_nothing_between_ranks(tmp_path):
    async def story() -> None:
        async with hall(tmp_path, ("n0",), nproc=1) as made:
            (answer,) = await made.examine(ExamKind.ALL_TO_ALL, ("n0",), num_ranks=1)
            assert answer.passed is None
            assert "one rank" in answer.why

    play(story)
