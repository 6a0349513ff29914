"""A joined host looks for the host that has the controller now; who takes its connection need not be the one."""

import asyncio
from types import SimpleNamespace

import pytest

from everstep.errors import UnreachableError
from everstep.launcher.arguments.hosts import Hosts
from everstep.launcher.heirs.voting import Voting
from everstep.launcher.succession import candidacy
from everstep.wire.heirs import Roster, Voter


def voter(number):
    return Voter(number=number, session=f"s{number}", host=f"h{number}", address="10.0.0.1", port=1)


class Looking:
    """Host 3 of a run whose first host is gone; `there`: which hosts take connections."""

    def __init__(self, monkeypatch, there, join_limit_s=600.0):
        self.there, self.asked, self.said = there, [], []
        monkeypatch.setattr(candidacy, "connect", self._connect)
        monkeypatch.setattr(candidacy, "_AGAIN_S", 0.001)
        hosts = Hosts(num=4, host="10.0.0.1", port=1, join_limit_s=join_limit_s)
        self.one = candidacy.Candidacy(hosts, "s", None, None, None, say=self.said.append, moved=lambda: None)
        keys = SimpleNamespace(own="s3", towards=lambda session: None)
        roster = Roster(epoch=1, number=1, voters=tuple(map(voter, range(4))))
        self.voting = Voting(epoch=1, roster=roster)
        self.one._heir = SimpleNamespace(roster=roster, keys=keys, follow=self.voting.follow)

    async def _connect(self, voter, proofs):
        self.asked.append(voter.number)
        if voter.number not in self.there:
            raise ConnectionRefusedError
        return voter


async def for_ever(find):
    while True:
        await find()


def test_a_host_without_the_controller_that_takes_connections_keeps_nobody_from_the_one_that_has_it(monkeypatch):
    async def story():
        looking = Looking(monkeypatch, there={1, 2})
        found = [(await looking.one.find()).number for _ in range(4)]
        assert found == [1, 2, 1, 2]
        looking.one._leader = voter(2)
        assert (await looking.one.find()).number == 2

    asyncio.run(story())


def test_hosts_that_only_take_connections_are_not_asked_for_ever(monkeypatch):
    async def story():
        looking = Looking(monkeypatch, there={1}, join_limit_s=0.02)
        with pytest.raises(UnreachableError, match="no host of the run had the controller"):
            await for_ever(looking.one.find)

    asyncio.run(story())


def test_what_is_missing_is_said_once_with_what_becomes_of_this_host(monkeypatch):
    monkeypatch.setattr(candidacy, "SAID_AFTER_S", 0.01)

    async def story():
        looking = Looking(monkeypatch, there={1}, join_limit_s=0.05)
        with pytest.raises(UnreachableError):
            await for_ever(looking.one.find)
        (said,) = looking.said
        assert "a successor needs 3 of the 4 hosts that vote" in said
        assert "host joins it when it reaches that side, and ends after 0 s" in said

    asyncio.run(story())


def test_who_has_found_it_begins_anew_the_next_time(monkeypatch):
    async def story():
        looking = Looking(monkeypatch, there={1}, join_limit_s=0.02)
        await looking.one.find()
        looking.one.follow(2, "s1")
        await asyncio.sleep(0.03)
        assert (await looking.one.find()).number == 1

    asyncio.run(story())
