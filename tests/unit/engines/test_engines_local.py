"""The local engine: a request is served once, and one that was refused may be made again."""

import asyncio
from types import SimpleNamespace

import pytest

from everstep.engines import local
from everstep.engines.local import LocalEngine
from everstep.engines.memory_keeper import MemoryKeeper
from everstep.engines.protocol import NoNodeError
from everstep.linux.children import Ended


class Processes:
    """Starts nothing; refuses as often as it is told."""

    def __init__(self) -> None:
        self.num_refused = 0
        self.started: list[str] = []
        self.argv: list[list[str]] = []

    def spawn(self, name, argv, **options):
        if self.num_refused:
            self.num_refused -= 1
            raise OSError(11, "Resource temporarily unavailable")
        self.started.append(name)
        self.argv.append(argv)
        return SimpleNamespace(name=name, pid=1)

    async def wait_for_wardens(self) -> None:
        """There are none."""


def engine_of(tmp_path, processes, racks=()) -> LocalEngine:
    return LocalEngine(
        children=processes,
        keeper=MemoryKeeper(),
        run_dir=tmp_path,
        url="ws://localhost:1/link",
        nproc=1,
        grace_s=1.0,
        equip=lambda node, folder: None,
        racks=racks,
    )


def test_a_request_is_served_once_and_again_when_it_was_refused(tmp_path):
    async def play():
        processes = Processes()
        engine = engine_of(tmp_path, processes)
        processes.num_refused = 1
        with pytest.raises(NoNodeError):
            engine.acquire("r1")
        engine.acquire("r1")
        engine.acquire("r1")
        assert processes.started == ["n1"]

    asyncio.run(play())


def test_a_request_that_waited_and_was_refused_may_be_made_again(tmp_path, monkeypatch):
    async def play():
        processes = Processes()
        engine = engine_of(tmp_path, processes)
        lost = []
        engine.watch(lost.append)
        engine._num_early_ends = 1
        processes.num_refused = 1
        engine.acquire("r1")
        engine.acquire("r1")
        await asyncio.sleep(0.05)
        assert [loss.node for loss in lost] == ["n0"]
        engine.acquire("r1")
        await asyncio.sleep(0.05)
        assert processes.started == ["n1"]

    monkeypatch.setattr(local, "_BACK_OFF_S", (0.0, 0.01))
    asyncio.run(play())


@pytest.mark.parametrize(("racks", "dealt"), [(("a", "a", "b"), ["a", "a", "b", "a"]), ((), [None] * 4)])
def test_racks_are_dealt_in_turn_also_in_a_later_attempt(tmp_path, racks, dealt):
    async def play():
        (tmp_path / "nodes" / "n6").mkdir(parents=True)
        processes = Processes()
        engine = engine_of(tmp_path, processes, racks)
        for request in ("r1", "r2", "r3", "r4"):
            engine.acquire(request)
        assert processes.started == ["n7", "n8", "n9", "n10"]
        told = [argv[argv.index("--rack") + 1] if "--rack" in argv else None for argv in processes.argv]
        assert told == dealt

    asyncio.run(play())


def test_who_asks_gets_what_was_prepared_and_then_new_ones(tmp_path):
    async def play():
        processes = Processes()
        engine = engine_of(tmp_path, processes)
        engine.prepare(2)
        assert processes.started == ["n0", "n1"]
        for request in ("r1", "r2", "r2"):
            engine.acquire(request)
        assert processes.started == ["n0", "n1"]
        engine.acquire("r3")
        assert processes.started == ["n0", "n1", "n2"]

    asyncio.run(play())


def test_the_end_of_a_prepared_one_that_nobody_has_asked_for_is_no_loss(tmp_path):
    async def play():
        processes = Processes()
        engine = engine_of(tmp_path, processes)
        lost = []
        engine.watch(lost.append)
        engine.prepare(1)
        await engine._after_end(SimpleNamespace(name="n0", pid=1, started_at=0.0), Ended(pid=1, at=100.0, code=0))
        engine.acquire("r1")
        assert (processes.started, lost) == (["n0", "n1"], [])

    asyncio.run(play())


@pytest.mark.parametrize(("spares", "num_ended"), [(True, 0), (False, 2)])
def test_an_agent_that_ends_badly_after_a_run_that_ended_well_takes_nothing_with_it(tmp_path, spares, num_ended):
    """Two are asked to end what is left: who looks after the agent's end, and who ends the nodes."""

    async def play():
        processes = Processes()
        told = []

        async def end_orphans():
            told.append("end")
            return True

        def spawn(name, argv, *, on_end, **options):
            agent = SimpleNamespace(name=name, pid=1, started_at=0.0, ended=None)

            def send(number):
                if agent.ended is None:
                    agent.ended = Ended(pid=1, at=1.0, signal=number)
                    on_end(agent, agent.ended)

            agent.send = send
            return agent

        processes.spawn, processes.end_orphans = spawn, end_orphans
        engine = engine_of(tmp_path, processes)
        engine.acquire("r1")
        await engine.end(5.0, spares=spares)
        await asyncio.sleep(0.01)
        assert len(told) == num_ended

    asyncio.run(play())
