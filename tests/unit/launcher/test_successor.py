"""Who may go on with the controller of a run over several hosts, and with which journal: two never act."""

import asyncio
import errno
import itertools
import socket
import time

import pytest

from everstep.controller.record.copied import Copied
from everstep.engines.hosts.host import Host
from everstep.journal.beside.succession import known
from everstep.launcher.heirs import copying, willing
from everstep.launcher.heirs.copying import Copying
from everstep.launcher.heirs.heir import Heir
from everstep.launcher.heirs.proving import Acquaintances, pair_key
from everstep.launcher.heirs.quorum import reached_by, to_commit, to_elect
from everstep.launcher.heirs.replica import Replica
from everstep.launcher.heirs.voting import Voting
from everstep.wire.heirs import (
    AskVote,
    HasJournal,
    HasRoster,
    Introduction,
    JournalPart,
    Legacy,
    Pulse,
    PulseHeard,
    Ready,
    Roster,
    Voter,
    public,
)
from everstep.wire.joining import Join


def voter(number):
    return Voter(number=number, session=public(f"s{number}"), host=f"h{number}", address=f"10.0.0.{number}", port=1)


def roster(num, epoch=1, number=1):
    return Roster(epoch=epoch, number=number, voters=tuple(map(voter, range(num))))


def ask(number=1, epoch=2, of=None, journal=(1, 100), is_probe=False):
    of = of or roster(3)
    return AskVote(session=public(f"s{number}"), epoch=epoch, roster=of.age, journal=journal, is_probe=is_probe)


def asked(*args, **given):
    """A question, and who has proven to ask it."""
    question = ask(*args, **given)
    return question, question.session


def part(at, data, epoch=1, begins_at=0):
    return JournalPart(epoch=epoch, begins_at=begins_at, at=at, data=data)


@pytest.mark.parametrize("num", range(1, 9))
def test_what_counts_and_who_is_elected_have_a_host_in_common(num):
    everybody = range(num)
    for those in itertools.combinations(everybody, to_commit(num)):
        for others in itertools.combinations(everybody, to_elect(num)):
            assert set(those) & set(others)


def test_of_two_hosts_the_controllers_needs_nobody_and_the_other_one_succeeds_nobody():
    assert (to_commit(2), to_elect(2)) == (1, 2)


def test_two_elections_have_a_host_in_common():
    assert all(2 * to_elect(num) > num for num in range(1, 20))


def test_what_so_many_have_reached():
    assert reached_by([5, 1, 3], 2) == 3
    assert reached_by([5], 2) == float("-inf")


def voting(promised=0, promised_to="", epoch=1, of=None):
    return Voting(epoch=epoch, promised=promised, promised_to=promised_to, roster=of or roster(3))


LATE = {"silent_s": 9.0, "patience_s": 2.0}


def test_a_vote_is_given_once_in_an_epoch():
    one = voting()
    assert one.objection(*asked(1), journal=(1, 100), **LATE) == ""
    one.promise(ask(1))
    assert "promised to another" in one.objection(*asked(2), journal=(1, 100), **LATE)
    assert one.objection(*asked(1), journal=(1, 100), **LATE) == ""
    assert not one.counts
    assert one.objection(*asked(2, epoch=3), journal=(1, 100), **LATE) == ""


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (ask(7), "not known"),
        (ask(epoch=1), "has begun"),
        (ask(of=roster(3, number=0)), "other ones"),
        (ask(journal=(1, 99)), "has less"),
        (ask(journal=(0, 1000)), "has less"),
    ],
)
def test_who_may_lack_something_gets_no_vote(asked, why):
    assert why in voting().objection(asked, asked.session, journal=(1, 100), **LATE)


def test_a_controller_that_is_heard_of_has_no_successor():
    assert "heard 1.0 s ago" in voting().objection(*asked(), journal=(1, 1), silent_s=1.0, patience_s=2.0)


def test_an_older_controller_is_not_followed():
    one = voting()
    assert one.follow(2, "a")
    assert not one.follow(1, "a")
    assert one.follow(2, "a")
    assert one.counts


def test_the_journal_grows_and_is_cut_where_nobody_counted_on_it(tmp_path):
    replica = Replica(tmp_path)
    assert replica.take(part(0, b"abc")) == 3
    assert replica.take(part(3, b"de")) == 5
    assert replica.age == (1, 5)
    assert replica.take(part(4, b"X", epoch=2, begins_at=4)) == 5
    assert replica.age == (2, 5)
    assert replica.path.read_bytes() == b"abcdX"


def test_a_journal_is_replaced_only_when_the_new_one_says_more(tmp_path):
    replica = Replica(tmp_path)
    replica.take(part(0, b"abc"))
    assert replica.take(part(0, b"AB", epoch=3, begins_at=4)) == 0
    assert replica.age == (1, 3)
    assert replica.path.read_bytes() == b"abc"
    assert replica.take(part(2, b"CDE", epoch=3, begins_at=4)) == 5
    assert replica.age == (3, 5)
    assert replica.path.read_bytes() == b"ABCDE"
    assert replica.take(part(5, b"F", epoch=3, begins_at=4)) == 6


@pytest.mark.parametrize("at", [1, 4, -1])
def test_a_part_that_does_not_fit_is_refused(tmp_path, at):
    replica = Replica(tmp_path)
    replica.take(part(0, b"abc"))
    with pytest.raises(ValueError, match="part of the journal"):
        replica.take(part(at, b"x"))
    assert replica.path.read_bytes() == b"abc"


class Line:
    def __init__(self):
        self.sent = []

    def send(self, message):
        self.sent.append(message)


def a_host(number, journal=(0, 0)):
    join = Join(
        session=f"s{number}",
        host=f"h{number}",
        address=f"10.0.0.{number}",
        everstep_version="0",
        torch_version="0",
        journal=journal,
    )
    host = Host(join, number)
    host.line = Line()
    return host


LEGACY = Legacy(secret="s", certificate="c", key="k", snapshots_certificate="", snapshots_key="")


class Bench:
    """A controller's host with a journal of its own, and hosts that answer when a test says so."""

    def __init__(self, folder, **more):
        self.path = folder / "journal.jsonl"
        self.path.write_bytes(b"0123456789")
        self.confirmed, self.ended, self.newest = [], [], 0
        more = {"patience_s": 0.05, "limit_s": 9.0, "own": voter(0)} | more
        more |= {"session": "s0", "acquaintances": Acquaintances("s0", {})}
        self.copying = Copying(
            journal=self.path,
            legacy=LEGACY,
            host=self,
            **more,
        )
        self.copied = Copied(socket.socket(fileno=self.copying.controllers_end.detach()))

    async def close(self):
        await self.copying.close()
        self.copied.close()

    def nodes(self):
        return ("n0",)

    def note_confirmed(self, at):
        self.confirmed.append(at)

    def end(self, why):
        self.ended.append(why)

    def say(self, text):
        """Nobody listens."""

    async def newest_epoch(self, roster):
        return self.newest

    def join(self, number):
        host = a_host(number)
        self.copying.joined(host)
        self.copying.hear(host, Ready(port=1))
        return host

    def confirm(self, host, *, journal=True):
        """All that was sent to it until now."""
        for message in host.line.sent:
            match message:
                case JournalPart(epoch=epoch, at=at, data=data) if journal:
                    self.copying.hear(host, HasJournal(epoch=epoch, upto=at + len(data)))
                case Roster(epoch=epoch, number=number):
                    self.copying.hear(host, HasRoster(epoch=epoch, number=number))
                case Pulse(number=number):
                    self.copying.hear(host, PulseHeard(number=number))
        host.line.sent.clear()

    async def vote(self, *hosts):
        """Until all of them do."""
        async with asyncio.timeout(5):
            while len(self.copying.roster.voters) <= len(hosts):
                self.copying._look(asyncio.get_running_loop().time())
                for host in hosts:
                    self.confirm(host)
                await asyncio.sleep(0)


def run(story, folder, **more):
    async def whole():
        bench = Bench(folder, **more)
        try:
            await story(bench)
        finally:
            await bench.close()

    asyncio.run(whole())


async def is_settled(bench, size):
    settling = asyncio.ensure_future(bench.copied.settle(size))
    for _ in range(20):
        await asyncio.sleep(0)
    bench.copying._hear_controller()
    await asyncio.wait([settling], timeout=0.05)
    is_done = settling.done()
    settling.cancel()
    return is_done


def test_alone_and_of_two_what_is_on_record_counts_at_once(tmp_path):
    async def story(bench):
        assert await is_settled(bench, 10)
        await bench.vote(bench.join(1))
        bench.path.write_bytes(bytes(20))
        assert await is_settled(bench, 20)

    run(story, tmp_path)


def test_of_three_nothing_counts_before_another_host_has_it(tmp_path):
    async def story(bench):
        one, two = bench.join(1), bench.join(2)
        await bench.vote(one, two)
        bench.path.write_bytes(bytes(20))
        assert not await is_settled(bench, 20)
        bench.confirm(two)
        assert await is_settled(bench, 20)

    run(story, tmp_path)


def test_at_the_end_of_a_run_nobody_is_missed(tmp_path):
    async def story(bench):
        said = []
        await bench.vote(bench.join(1), bench.join(2))
        bench.say = said.append  # not before: on a busy machine the vote takes longer than the patience with others
        bench.copying._was_alone = False
        bench.copying._told_at = float("-inf")
        later = time.monotonic() + 5.0
        bench.copying.finish()
        bench.copying._mind_others(later, 5.0)
        assert said == []
        bench.copying._is_over = False
        bench.copying._mind_others(later, 5.0)
        assert "fewer than 2 of the 3 hosts" in said[0]

    run(story, tmp_path)


def test_who_stood_still_knows_that_another_one_may_have_the_controller(tmp_path):
    async def story(bench):
        one, two = bench.join(1), bench.join(2)
        await bench.vote(one, two)
        bench.copying._told_at = float("-inf")
        for heir in bench.copying._heirs.values():
            heir.confirmed_at = time.monotonic()
        assert bench.copying.is_confirmed
        await asyncio.sleep(0.06)  # longer than its patience
        assert not bench.copying.is_confirmed

    run(story, tmp_path)


def test_who_may_take_over_is_noted_as_soon_as_it_counts(tmp_path):
    """A first host that loses its power just then must not begin a second run when it comes back."""

    async def story(bench):
        await bench.vote(bench.join(1), bench.join(2))
        assert len(known(tmp_path).doors) == 3
        assert known(tmp_path).may_be_succeeded

    run(story, tmp_path)


def test_who_is_about_to_vote_is_noted_before_it_is_told(tmp_path):
    """Hosts that have been told elect among them, whether this one hears of it or not; it still knows whom to ask."""

    async def story(bench):
        one = bench.join(1)
        await bench.vote(one)
        two = bench.join(2)
        bench.copying.hear(two, HasJournal(epoch=1, upto=10))
        bench.copying._change_roster()
        assert [each for each in one.line.sent if isinstance(each, Roster) and len(each.voters) == 3]
        for _ in range(2):
            assert len(known(tmp_path).doors) == 3
            assert known(tmp_path).may_be_succeeded
            bench.copying._note(time.monotonic())  # nobody has confirmed it yet

    run(story, tmp_path)


def test_hosts_of_an_older_epoch_confirm_nothing(tmp_path):
    async def story(bench):
        host = bench.join(1)
        bench.copying.hear(host, HasJournal(epoch=1, upto=10))
        assert not await is_settled(bench, 10)
        bench.copying.hear(host, HasJournal(epoch=2, upto=10))
        assert await is_settled(bench, 10)

    run(story, tmp_path, epoch=2, roster=roster(3), begins_at=5, earlier_epoch=1)


def test_a_host_that_others_do_not_hear_says_so_to_its_own_ranks_and_ends_for_a_newer_epoch(tmp_path):
    async def story(bench):
        await bench.vote(bench.join(1), bench.join(2))
        loop = asyncio.get_running_loop()
        heard_at = bench.confirmed[-1]
        await asyncio.sleep(0.06)
        bench.copying._look(loop.time())
        assert bench.confirmed[-1] == heard_at
        assert bench.ended == []
        bench.newest = 2
        await bench.copying._ask()
        assert "another host has the controller" in bench.ended[0]

    run(story, tmp_path)


def test_a_host_that_was_there_before_gets_what_it_lacks(tmp_path):
    async def story(bench):
        for journal, at in [((3, 8), 8), ((2, 4), 4), ((2, 9), 6), ((1, 4), 0), ((0, 0), 0)]:
            host = a_host(1, journal)
            bench.copying.joined(host)
            bench.copying.hear(host, Ready(port=1))
            (first,) = [each for each in host.line.sent if isinstance(each, JournalPart)][:1]
            assert first.at == at

    run(story, tmp_path, epoch=3, roster=roster(3), begins_at=6, earlier_epoch=2)


def test_each_host_gets_the_keys_that_it_shares_with_others_and_no_other_ones(tmp_path):
    async def story(bench):
        one, two = bench.join(1), bench.join(2)
        known = {}
        for number, host in ((1, one), (2, two)):
            for message in host.line.sent:
                known.setdefault(number, {}).update(message.keys if isinstance(message, Introduction) else {})
        assert known == {number: {public("s0"): pair_key(f"s{number}", "s0")} for number in (1, 2)}  # no voter yet
        await bench.vote(one, two)
        three = bench.join(3)
        sent = [message for message in three.line.sent if isinstance(message, Introduction)]
        assert sent[0].keys == {public(f"s{n}"): pair_key("s3", f"s{n}") for n in range(3)}
        told = [message.keys for message in one.line.sent if isinstance(message, Introduction)]
        assert told == [{public("s3"): pair_key("s1", "s3")}]

    run(story, tmp_path)


def test_voters_that_cannot_write_what_they_are_sent_vote_no_more_and_come_back(tmp_path, monkeypatch):
    async def story(bench):
        one, two = bench.join(1), bench.join(2)
        await bench.vote(one, two)
        monkeypatch.setattr(copying, "GONE_S", 0.05)
        bench.path.write_bytes(bytes(20))
        assert not await is_settled(bench, 20)
        async with asyncio.timeout(5):
            while len(bench.copying.roster.voters) > 1:
                bench.copying._look(asyncio.get_running_loop().time())
                for host in (one, two):
                    host.heard_at = time.monotonic()
                    kept = [each for each in host.line.sent if isinstance(each, JournalPart)]
                    bench.confirm(host, journal=False)
                    host.line.sent += kept
                await asyncio.sleep(0.01)
        assert await is_settled(bench, 20), "the controller's host goes on alone"
        monkeypatch.undo()  # or a disk that takes longer than that to note who votes keeps them out
        await bench.vote(one, two)
        assert len(bench.copying.roster.voters) == 3

    run(story, tmp_path)


class FullDisk:
    """Of one heir, until `is_full` says otherwise."""

    def __init__(self, heir):
        self.is_full, self._take = True, heir.replica.take

    def take(self, message):
        if self.is_full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return self._take(message)


def test_what_a_full_disk_does_not_take_is_written_when_it_does(tmp_path, monkeypatch):
    heir = Heir(tmp_path, session="s1", address="127.0.0.1", token=None, silent_s=1.0, on_led=None)
    heir.begin(1)
    said, disk = [], FullDisk(heir)
    monkeypatch.setattr(heir.replica, "take", disk.take)
    asyncio.run(heir.take(part(0, b"abc"), said.append))
    asyncio.run(heir.take(part(3, b"de"), said.append))
    asyncio.run(heir.take(Pulse(number=1, session="s0", nodes=()), said.append))
    assert said == [PulseHeard(number=1)], "it is heard of"
    disk.is_full = False
    asyncio.run(heir.take(Pulse(number=2, session="s0", nodes=()), said.append))
    assert said[1:] == [HasJournal(epoch=1, upto=3), HasJournal(epoch=1, upto=5), PulseHeard(number=2)]
    assert heir.replica.path.read_bytes() == b"abcde"


def test_what_waited_for_a_disk_is_not_confirmed_to_a_host_that_this_one_has_left(tmp_path, monkeypatch):
    """Else it would count there, and the successor that got this vote would lack it."""
    heir = Heir(tmp_path, session="s1", address="127.0.0.1", token=None, silent_s=1.0, on_led=None)
    heir.begin(1)
    heir.voting.roster = roster(3)
    said, disk = [], FullDisk(heir)
    monkeypatch.setattr(heir.replica, "take", disk.take)
    asyncio.run(heir.take(part(0, b"abc"), said.append))
    heir.voting.promise(ask(2))
    disk.is_full = False
    asyncio.run(heir.take(Pulse(number=1, session="s0", nodes=()), said.append))
    assert said == []
    assert heir.replica.age == (0, 0)


@pytest.mark.parametrize(
    ("wish", "is_remote", "takes_part"),
    [("", False, True), ("", True, False), ("on", True, True), ("off", False, False), ("off", True, False)],
)
def test_who_waits_for_a_file_server_keeps_no_journal_unless_a_person_wants_it(
    tmp_path, monkeypatch, wish, is_remote, takes_part
):
    kind = "nfs4" if is_remote else "ext4"
    monkeypatch.setattr(willing, "mounts_of_this_process", lambda: f"x / {kind} rw 0 0\n")
    monkeypatch.setenv("EVERSTEP_SUCCESSOR", wish)
    assert ("EVERSTEP_SUCCESSOR" in willing.refusal(tmp_path)) is not takes_part


@pytest.mark.parametrize(("said", "is_odd"), [("", False), ("on", False), ("off", False), ("yes", True), ("ON", True)])
def test_a_wish_that_is_not_understood_is_said(monkeypatch, said, is_odd):
    monkeypatch.setenv("EVERSTEP_SUCCESSOR", said)
    assert (f"EVERSTEP_SUCCESSOR={said} has no effect" in willing.misunderstood()) is is_odd
