"""Twins that import ahead: all at once, not while ranks come back, and never in the way of one that does."""

import asyncio
import itertools
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from everstep.agent.processes import reaping
from everstep.agent.processes.ahead import Ahead
from everstep.agent.processes.channel import Channel
from everstep.agent.ranks import twins as twins_module
from everstep.agent.ranks.twin import Awake
from everstep.agent.ranks.twins import Twins
from everstep.agent.versions.placing import Placed

PLACED = Placed(program="train.py", args=(), env={}, moved=None)


class Machine:
    """Twins as the agent sees them: each a socket that answers, with a pid that is nobody's."""

    def __init__(self) -> None:
        self.pids = itertools.count(1)
        self.ended: list[int] = []
        self.importing: list[int] = []
        self.imported: dict[int, list[str]] = {}  # by twin
        self.may_finish = asyncio.Event()
        self.spoilers: set[str] = set()
        self.peers: list[Channel] = []
        self.watched: dict[int, Callable[..., None]] = {}
        self.ahead: dict[int, int] = {}  # by twin, the process that it has forked ahead

    def adopted(self) -> set[int]:
        return set(range(1, 1000)) - set(self.watched)

    def watch(self, pid: int, on_end: Callable[..., None]) -> None:
        self.watched[pid] = on_end

    def let_go(self, pid: int) -> bool:
        return self.watched.pop(pid, None) is not None

    def new_twin(self, imported: tuple[str, ...] = (), of: int = 0) -> socket.socket:
        ours, theirs = socket.socketpair()
        pid = next(self.pids)
        self.imported[pid] = list(self.imported.get(of, ()))

        def answer(frame: dict[str, Any], _fds: list[int]) -> None:
            asyncio.get_running_loop().create_task(self._answer(peer, pid, frame, imported))

        peer = Channel(theirs, answer, lambda _why: None)
        self.peers.append(peer)
        peer.send({"is": "here", "pid": pid, "num_modules": 1})
        return ours

    async def _answer(self, peer: Channel, pid: int, frame: dict[str, Any], imported: tuple[str, ...]) -> None:
        if frame["do"] == "split":
            with self.new_twin(("torch._dynamo",), of=pid) as link:
                peer.send({"is": "split", "pid": pid}, (link.fileno(),))
        elif frame["do"] == "import":
            self.importing.append(pid)
            bad = next((name for name in frame["modules"] if name in self.spoilers), None)
            if bad is None:
                await self.may_finish.wait()
                self.imported[pid] += [name for name in frame["modules"] if name not in self.imported[pid]]
            peer.send({"is": "ready"} if bad is None else {"is": "spoiled", "module": bad, "why": "a thread"})
        elif frame["do"] == "adopt":
            peer.send({"is": "here", "pid": pid, "num_modules": 1})
        elif frame["do"] == "ahead":
            self.ahead[pid] = 500 + pid
            peer.send({"is": "ahead", "pid": 500 + pid})
        else:
            mine, link = socket.socketpair()
            with mine, link:
                goes_on = self.ahead.pop(pid, 900 + pid)
                peer.send({"is": "awake", "pid": goes_on, "why": ",".join(imported)}, (link.fileno(),))


@pytest.fixture
def killed(monkeypatch):
    found: list[int] = []
    monkeypatch.setattr(reaping, "kill", lambda pid, _signal: found.append(pid))
    return found


def play(story: Callable[[Machine, Twins], Awaitable[None]], ranks: int = 4) -> None:
    async def run() -> None:
        machine = Machine()
        news: list[None] = []
        twins = Twins(
            machine,
            SimpleNamespace(
                tell_session=print, note_news=lambda: news.append(None), note_proven=print, note_idle=lambda idle: None
            ),
        )
        for local_rank in range(ranks):
            told = {"stage": "at the rendezvous"}
            twins.add(local_rank, told, machine.new_twin().detach(), PLACED, Path("out"), Path("err"))
        await until(lambda: len(news) == ranks)
        async with asyncio.timeout(60):
            await story(machine, twins)
        twins.close()
        for peer in machine.peers:
            peer.close()

    asyncio.run(run())


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


def test_all_twins_import_ahead_at_once(killed):
    async def story(machine: Machine, twins: Twins) -> None:
        twins.learn(Ahead(modules=["torch._dynamo"]))
        work = asyncio.create_task(twins.import_ahead())
        await until(lambda: len(machine.importing) == min(4, twins_module.imports_at_a_time()))
        machine.may_finish.set()
        await work
        assert len(machine.importing) == 4
        assert sorted(killed) == [1, 2, 3, 4]  # each replaced by the one that it left

    play(story)


@pytest.mark.parametrize(("took_s", "pid"), [(30.0, 902), (0.0, 901)])
def test_it_waits_for_as_long_as_the_rank_itself_took(killed, monkeypatch, took_s, pid):
    """What the rank would have to import from the start otherwise; and no longer."""
    monkeypatch.setattr(twins_module, "FINISH_S", 0.02)

    async def story(machine: Machine, twins: Twins) -> None:
        twins.learn(Ahead(modules=["torch._dynamo"], took_s=took_s))
        work = asyncio.create_task(twins.import_ahead())
        await until(lambda: len(machine.importing) == 1)
        woken = asyncio.create_task(twins.wake(0, PLACED, {}))
        if took_s:
            await asyncio.sleep(0.1)
            assert not woken.done()
        else:
            await asyncio.wait([woken])
        machine.may_finish.set()
        awake = await woken
        await work
        assert isinstance(awake, Awake)
        assert awake.pid == pid
        awake.link.close()

    play(story, ranks=1)


def test_a_rank_that_comes_back_waits_for_what_its_twin_has_begun(killed):
    async def story(machine: Machine, twins: Twins) -> None:
        twins.learn(Ahead(modules=["torch._dynamo"]))
        work = asyncio.create_task(twins.import_ahead())
        await until(lambda: len(machine.importing) == 1)
        woken = asyncio.create_task(twins.wake(0, PLACED, {}))
        await asyncio.sleep(0.01)
        assert not woken.done()
        machine.may_finish.set()
        awake = await woken
        await work
        assert isinstance(awake, Awake)
        assert awake.pid == 902  # of the second process, which has imported; the first one has not
        awake.link.close()

    play(story, ranks=1)


def test_an_import_that_takes_too_long_is_given_up_for_the_twin_before_it(killed, monkeypatch):
    monkeypatch.setattr(twins_module, "FINISH_S", 0.01)

    async def story(machine: Machine, twins: Twins) -> None:
        twins.learn(Ahead(modules=["torch._dynamo"]))
        work = asyncio.create_task(twins.import_ahead())
        await until(lambda: len(machine.importing) == 1)
        awake = await twins.wake(0, PLACED, {})
        assert isinstance(awake, Awake)
        assert awake.pid == 901
        awake.link.close()
        await work
        assert killed == [2]

    play(story, ranks=1)


def test_no_import_begins_while_ranks_come_back(killed, monkeypatch):
    monkeypatch.setattr(twins_module, "imports_at_a_time", lambda: 1)

    async def story(machine: Machine, twins: Twins) -> None:
        twins.learn(Ahead(modules=["torch._dynamo"]))
        work = asyncio.create_task(twins.import_ahead())
        await until(lambda: len(machine.importing) == 1)
        first = asyncio.create_task(twins.wake(0, PLACED, {}))
        await asyncio.sleep(0)
        machine.may_finish.set()
        second = await twins.wake(1, PLACED, {})
        assert isinstance(second, Awake)
        second.link.close()
        awake = await first
        assert isinstance(awake, Awake)
        awake.link.close()
        await work
        assert len(machine.importing) <= 2  # the third and fourth wait for the next quiet moment
        await twins.import_ahead()
        assert len(machine.importing) == 4

    play(story)


def test_a_module_that_spoils_is_left_out_and_the_rest_is_imported(killed):
    async def story(machine: Machine, twins: Twins) -> None:
        machine.spoilers = {"starts_a_thread"}
        machine.may_finish.set()
        twins.learn(Ahead(modules=["torch._dynamo", "starts_a_thread"]))
        await twins.import_ahead()
        assert twins.ahead is not None
        assert twins.ahead.modules == ["torch._dynamo"]
        for local_rank in range(2):
            awake = await twins.wake(local_rank, PLACED, {})
            assert isinstance(awake, Awake)
            assert awake.pid - 900 in machine.importing  # of one that has imported
            awake.link.close()

    play(story, ranks=2)


def test_what_comes_before_a_module_that_spoils_is_imported_whatever_comes_after_it(killed):
    """A library that starts threads is imported by others, which spoil as well; what is good is kept each time."""

    async def story(machine: Machine, twins: Twins) -> None:
        machine.spoilers = {"starts_a_thread", "imports_it", "imports_it_too"}
        machine.may_finish.set()
        twins.learn(Ahead(modules=["one", "starts_a_thread", "two", "imports_it", "imports_it_too", "three"]))
        await twins.import_ahead()
        assert twins.ahead is not None
        assert twins.ahead.modules == ["one", "two", "three"]
        assert machine.imported[machine.importing[-1]] == ["one", "two", "three"]
        awake = await twins.wake(0, PLACED, {})
        assert isinstance(awake, Awake)
        assert awake.pid - 900 == machine.importing[-1]
        awake.link.close()
        num_imports = len(machine.importing)
        await twins.import_ahead()
        assert len(machine.importing) == num_imports, "it has all that it can have"

    play(story, ranks=1)


def test_a_twin_does_without_more_than_so_many(killed, monkeypatch):
    monkeypatch.setattr(twins_module, "MAX_SPOILED", 2)

    async def story(machine: Machine, twins: Twins) -> None:
        machine.spoilers = {"a", "b", "c"}
        machine.may_finish.set()
        twins.learn(Ahead(modules=["one", "a", "two", "b", "three", "c", "four"]))
        await twins.import_ahead()
        assert machine.imported[machine.importing[-1]] == ["one", "two"]

    play(story, ranks=1)


def test_ranks_that_can_all_be_parked_at_the_last_moment_need_no_earlier_twin(killed):
    async def story(machine: Machine, twins: Twins) -> None:
        assert not twins.are_late(2)  # both are early ones
        for local_rank in range(2):
            assert not twins.are_late(2)
            told = {"stage": "at the rendezvous", "last": 1}
            twins.add(local_rank, told, machine.new_twin().detach(), PLACED, Path("out"), Path("err"))
        assert twins.are_late(2)
        assert not twins.are_late(3)  # one has left none

    play(story, ranks=2)


@pytest.mark.parametrize(
    ("known", "parks_once"),
    [(Ahead(), False), (Ahead(is_late=True), True), (Ahead(is_late=True, was_stale=True), False)],
)
def test_an_early_twin_is_left_out_where_the_late_one_was_always_true(known, parks_once):
    assert known.parks_once is parks_once


def test_the_process_that_was_forked_ahead_goes_on_and_is_forked_anew_in_the_next_quiet_moment(killed):
    async def story(machine: Machine, twins: Twins) -> None:
        await twins.fork_ahead()
        await twins.fork_ahead()  # it is there already
        assert machine.ahead == {1: 501, 2: 502}
        awake = await twins.wake(0, PLACED, {})
        assert isinstance(awake, Awake)
        awake.link.close()
        assert awake.pid == 501
        assert 501 not in machine.watched, "whoever starts the rank watches it"
        await twins.fork_ahead()
        assert machine.ahead == {1: 501, 2: 502}
        assert 501 in machine.watched

    play(story, ranks=2)


def test_one_that_died_waiting_is_not_taken_for_the_one_that_goes_on(killed):
    async def story(machine: Machine, twins: Twins) -> None:
        await twins.fork_ahead()
        del machine.ahead[1]  # the twin sees it, too
        machine.watched.pop(501)(None)
        awake = await twins.wake(0, PLACED, {})
        assert isinstance(awake, Awake)
        awake.link.close()
        assert awake.pid == 901

    play(story, ranks=1)


def test_what_was_forked_ahead_ends_with_its_twin(killed):
    async def story(machine: Machine, twins: Twins) -> None:
        await twins.fork_ahead()
        other = Placed(program="another.py", args=(), env={}, moved=None)
        assert isinstance(await twins.wake(0, other, {}), str)
        assert sorted(killed) == [1, 501]

    play(story, ranks=1)


def test_nothing_is_forked_ahead_while_a_rank_comes_back(killed):
    async def story(machine: Machine, twins: Twins) -> None:
        twins.learn(Ahead(modules=["torch._dynamo"]))
        work = asyncio.create_task(twins.import_ahead())
        await until(lambda: len(machine.importing) == 2)
        woken = asyncio.create_task(twins.wake(0, PLACED, {}))
        await asyncio.sleep(0)
        await twins.fork_ahead()
        assert machine.ahead == {}
        machine.may_finish.set()
        awake = await woken
        assert isinstance(awake, Awake)
        awake.link.close()
        await work

    play(story, ranks=2)
