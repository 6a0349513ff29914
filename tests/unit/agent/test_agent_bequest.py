"""What an agent leaves to the next one: twins that wait, and no others."""

import asyncio
import socket
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace

import pytest
from test_agent_twins import PLACED, Machine, until

from everstep.agent.processes import reaping
from everstep.agent.processes.mailbox import Mailbox
from everstep.agent.ranks.bequest import Bequest
from everstep.agent.ranks.twin import Awake
from everstep.agent.ranks.twins import Twins


class Agent:
    """The parts that a line of processes gives, and twins."""

    def __init__(self, mailbox: Mailbox, machine: Machine) -> None:
        self.spared: list[list[int]] = []
        self.line = SimpleNamespace(mailbox=mailbox, num_above=1, parked=mailbox.take())
        self.bequest = Bequest(self.line, self)
        self.note_idle = self.bequest.show
        self.tell_session = self.note_proven = print
        self.twins = Twins(machine, self)
        for local_rank, twin in self.bequest.take():
            self.twins.adopt(local_rank, twin)

    def spare_twins(self, pids: Iterable[int]) -> None:
        self.spared.append(list(pids))

    def note_news(self) -> None:
        """Not looked at."""


@pytest.fixture(autouse=True)
def no_signals(monkeypatch):
    monkeypatch.setattr(reaping, "kill", lambda pid, _signal: True)


def test_a_twin_serves_the_next_agent_but_not_while_it_is_asked(monkeypatch):
    async def story() -> None:
        machine, mailbox = Machine(), Mailbox()
        first = Agent(mailbox, machine)
        for local_rank in (0, 1):
            told = {"stage": "at the rendezvous", "out": 7, "last": 1}
            link = machine.new_twin().detach()
            first.twins.add(local_rank, told, link, PLACED, Path("out"), Path("err"))
        await until(lambda: first.spared[-1:] == [[1, 2]])
        awake = await first.twins.wake(0, PLACED, {})
        assert isinstance(awake, Awake)
        awake.link.close()
        assert first.spared[-2:] == [[2], [1, 2]]
        with monkeypatch.context() as patch:
            patch.setattr(machine, "_answer", lambda *_: asyncio.sleep(0))
            asked = asyncio.create_task(first.twins.wake(1, PLACED, {}))
            await until(lambda: first.spared[-1] == [1])

        machine.watched.clear()  # it is killed now
        second = Agent(mailbox, machine)
        asked.cancel()
        await until(lambda: second.spared[-1:] == [[1]])
        again = await second.twins.wake(0, PLACED, {})
        assert isinstance(again, Awake)
        assert (again.stage, again.prefix.out_bytes, again.prefix.stdout) == ("at the rendezvous", 7, Path("out"))
        again.link.close()
        assert second.twins.why_not(1)
        for agent in (first, second):
            agent.twins.close()
        assert mailbox.take() == ({"twins": []}, [])
        mailbox.close()
        for peer in machine.peers:
            peer.close()

    asyncio.run(asyncio.wait_for(story(), 20))


def test_more_descriptors_than_a_message_takes_are_not_left():
    mailbox = Mailbox()
    near, far = socket.socketpair()
    with near, far:
        assert mailbox.post({"twins": []}, [near.fileno()])
        assert not mailbox.post({"twins": []}, [near.fileno()] * 251)
        assert mailbox.take() == ({"twins": []}, [])
    mailbox.close()
