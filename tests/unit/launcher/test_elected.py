"""A host that is elected goes on at once: the host that it takes the controller from answers nothing any more."""

import asyncio

from everstep.launcher.arguments.hosts import Hosts
from everstep.launcher.heirs.finding import Search
from everstep.launcher.joining.about import About, End
from everstep.launcher.joining.member import Member
from everstep.wire.joining import JoinToken


class Gone:
    """A connection to a machine that was switched off: it ends when it is given up, and not in order."""

    def __init__(self):
        self._is_given_up = asyncio.Event()

    def abort(self):
        self._is_given_up.set()

    async def close(self):
        await self._is_given_up.wait()


def test_it_does_not_wait_for_the_end_of_the_connection_to_the_lost_host(monkeypatch):
    async def talk(member):
        connection = member._connection = Gone()
        try:
            await asyncio.Event().wait()
        finally:
            await connection.close()

    async def succeed(member):
        member._connection = None
        end = End(exit_code=0, outcome="succeeded", why="")
        member._finish(end)
        return end

    async def story():
        member = Member(
            Hosts(num=3, host="h0", port=1),
            About(),
            lambda: JoinToken("0123456789abcdef"),
            signals=(),
            say=lambda text: None,
            show=lambda local: None,
            origin=None,
            search=Search(),
        )
        asyncio.get_running_loop().call_later(0.05, member._candidacy.elected.set_result, 2)
        async with asyncio.timeout(5):
            return await member.run()

    monkeypatch.setattr(Member, "_talk", talk)
    monkeypatch.setattr(Member, "_succeed", succeed)
    assert asyncio.run(story()).outcome == "succeeded"
