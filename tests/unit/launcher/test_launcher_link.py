"""What the launcher does when its link to the controller fails with an error of Python's own."""

import asyncio
from types import SimpleNamespace

import pytest

from everstep.launcher import supervise
from everstep.launcher.supervise import Supervisor


class Link:
    """Fails with each error in turn, then waits for ever."""

    def __init__(self, *errors, was_welcome=False):
        self.errors, self.was_welcome, self.num_runs = list(errors), was_welcome, 0

    async def run(self):
        self.num_runs += 1
        if self.errors:
            raise self.errors.pop(0)
        await asyncio.Event().wait()


def stay_linked(link):
    async def story():
        supervisor = Supervisor.__new__(Supervisor)
        supervisor._link, supervisor._end = link, asyncio.get_running_loop().create_future()
        supervisor._terminal = SimpleNamespace(say=said.append)
        task = asyncio.create_task(supervisor._stay_linked())
        for _ in range(100):
            await asyncio.sleep(0.001)
            if task.done() or link.num_runs > 1:
                break
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return supervisor._end.result() if supervisor._end.done() else None

    said: list[str] = []
    return asyncio.run(story()), said


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(supervise, "RELINK_S", 0.0)


def test_a_library_with_other_parameters_ends_the_launcher_with_a_sentence():
    end, _ = stay_linked(Link(TypeError("unexpected keyword argument 'socket_factory'"), TypeError("again")))
    assert end.exit_code == 1
    assert "socket_factory" in end.why
    assert "pip install 'aiohttp>=3.12'" in end.why


@pytest.mark.parametrize("link", [Link(TypeError("x"), was_welcome=True), Link(RuntimeError("x")), Link(OSError("x"))])
def test_a_link_that_was_there_or_fails_otherwise_is_made_again(link):
    end, said = stay_linked(link)
    assert end is None
    assert link.num_runs == 2
    assert "linking again" in said[0]
