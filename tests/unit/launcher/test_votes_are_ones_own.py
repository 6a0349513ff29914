"""A vote, and the claim to have the controller, count for the host that has proven who it is; the token is no name."""

import asyncio
import contextlib

import msgspec
import pytest

from everstep.launcher.heirs.asking import Ballot, connect, who
from everstep.launcher.heirs.heir import Heir
from everstep.launcher.heirs.proving import Acquaintances, pair_key
from everstep.launcher.heirs.voting import Voting
from everstep.launcher.reach.reaching import RefusedError
from everstep.launcher.rundir.keys import Keys
from everstep.launcher.succession.taking_over import begun_at
from everstep.wire.credentials import CERTIFICATE_NAME, KEY_NAME
from everstep.wire.heirs import AskVote, AskWho, JournalPart, Lead, Legacy, Ready, Roster, Vote, Voter, public
from everstep.wire.joining import JoinToken

TOKEN = JoinToken("0123456789abcdef")
SESSIONS = ("head's", "one's", "two's")


@pytest.fixture(scope="module")
def legacy(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys")
    Keys(folder, "r1").certify()
    certificate, key = ((folder / name).read_text() for name in (CERTIFICATE_NAME, KEY_NAME))
    return Legacy(secret="s", certificate=certificate, key=key, snapshots_certificate="", snapshots_key="")


class Hosts:
    """Two hosts that keep the journal of a third, which is gone; `led`: whom each was told to follow."""

    def __init__(self, folder, legacy):
        self._legacy = legacy
        self.led = {}
        self.heirs = {}
        for session in SESSIONS[1:]:
            (folder / session).mkdir()
            self.led[session] = []
            self.heirs[session] = Heir(
                folder / session,
                session=session,
                address="127.0.0.1",
                token=TOKEN,
                silent_s=0.01,
                on_led=self.led[session].append,
            )
            self.heirs[session].begin(1)

    async def open(self):
        ready = {}
        for session, heir in self.heirs.items():
            await heir.take(self._legacy, lambda message, session=session: ready.update({session: message.port}))
        self.voters = [
            Voter(number=n, session=public(session), host=f"h{n}", address="127.0.0.1", port=ready.get(session, 1))
            for n, session in enumerate(SESSIONS)
        ]
        self.roster = Roster(epoch=1, number=1, voters=tuple(self.voters))
        for session, heir in self.heirs.items():
            heir.keys.update({public(other): pair_key(session, other) for other in SESSIONS if other != session})
            await heir.take(self.roster, lambda message: None)
        await asyncio.sleep(0.02)  # longer than the controller's host may be silent

    async def close(self):
        for heir in self.heirs.values():
            await heir.close()


def tell(story, folder, legacy):
    async def run():
        hosts = Hosts(folder, legacy)
        await hosts.open()
        try:
            async with asyncio.timeout(30):
                await story(hosts)
        finally:
            await hosts.close()

    asyncio.run(run())


def ask(hosts, session, epoch=2, *, is_probe=False):
    return AskVote(session=public(session), epoch=epoch, roster=hosts.roster.age, journal=(9, 9), is_probe=is_probe)


async def answer(connection, question):
    connection.send(question)
    return await connection.receive()


def of(hosts, session):
    """What a host of the run proves itself with."""
    return hosts.heirs[session].keys


def test_the_join_token_alone_gets_no_vote_in_the_name_of_a_host(tmp_path, legacy):
    async def story(hosts):
        connection = await connect(hosts.voters[2], TOKEN)
        voted = await answer(connection, ask(hosts, "one's"))
        assert isinstance(voted, Vote)
        assert not voted.is_granted
        assert "has not proven" in voted.why
        assert hosts.heirs["two's"].voting.promised == 1
        await connection.close()

    tell(story, tmp_path, legacy)


def test_a_host_asks_in_its_own_name_only(tmp_path, legacy):
    async def story(hosts):
        connection = await connect(hosts.voters[2], of(hosts, "one's").towards(hosts.voters[2].session))
        assert not (await answer(connection, ask(hosts, "head's"))).is_granted
        assert (await answer(connection, ask(hosts, "one's"))).is_granted
        await connection.close()

    tell(story, tmp_path, legacy)


@pytest.mark.parametrize("case", ["token", "other", "not promised", "older", "newer"])
def test_only_whom_a_host_has_promised_may_say_that_it_leads(tmp_path, legacy, case):
    async def story(hosts):
        mine = of(hosts, "one's").towards(hosts.voters[2].session)
        connection = await connect(hosts.voters[2], mine)
        if case != "not promised":
            assert (await answer(connection, ask(hosts, "one's", 3))).is_granted
        said = Lead(session=public("one's"), epoch={"older": 2, "newer": 4}.get(case, 3))
        if case == "token":
            other = await connect(hosts.voters[2], TOKEN)
            await answer(other, AskWho())
            other.send(said)
            await other.close()
        elif case == "other":
            connection.send(Lead(session=public("head's"), epoch=3))
        else:
            await answer(connection, AskWho())
            connection.send(said)
        with contextlib.suppress(EOFError, OSError):
            async with asyncio.timeout(0.1):
                await connection.receive()
        assert hosts.led["two's"] == []
        await connection.close()

    tell(story, tmp_path, legacy)


def test_who_was_elected_leads(tmp_path, legacy):
    async def story(hosts):
        one = hosts.heirs["one's"]
        others = [hosts.voters[0], hosts.voters[2]]
        async with Ballot(others, one.keys) as ballot:
            assert await ballot.ask(ask(hosts, "one's", is_probe=True), 1) == 1
            assert hosts.heirs["two's"].voting.promised == 1
            assert await ballot.ask(ask(hosts, "one's"), 1) == 1
            ballot.tell(Lead(session=public("one's"), epoch=2))
            await ballot.flush()
            while not hosts.led["two's"]:
                await asyncio.sleep(0.001)
        assert hosts.led["two's"] == [hosts.voters[1]]

    tell(story, tmp_path, legacy)


def test_a_door_that_is_not_the_hosts_gives_no_vote_and_makes_nobody_step_back(tmp_path, legacy):
    """It is at that host's address, and has the join token."""

    async def story(hosts):
        one, two = hosts.heirs["one's"], hosts.heirs["two's"]
        two.keys.clear()
        two.voting.promised = 99
        async with Ballot([hosts.voters[2]], one.keys) as ballot:
            assert await ballot.ask(ask(hosts, "one's", 100, is_probe=True), 1) == 0
        assert await who([hosts.voters[2]], one.keys) == 0
        with pytest.raises(RefusedError):
            await connect(hosts.voters[2], one.keys.towards(hosts.voters[2].session))

    tell(story, tmp_path, legacy)


def test_the_answer_to_an_older_question_is_no_vote(tmp_path, legacy):
    """It may come after the second one was asked."""

    async def story(hosts):
        one, two = hosts.heirs["one's"], hosts.heirs["two's"]

        async def slow(first, line):
            while True:
                line.send(Vote(is_granted=True, epoch=1))
                await line.receive()

        two.door.on_question = slow
        async with Ballot([hosts.voters[2]], one.keys) as ballot:
            assert await ballot.ask(ask(hosts, "one's", is_probe=True), 1) == 1
            assert await ballot.ask(ask(hosts, "one's"), 1) == 0

    tell(story, tmp_path, legacy)


def test_a_host_that_is_no_voter_any_more_gets_none(tmp_path, legacy):
    async def story(hosts):
        left = Roster(epoch=1, number=2, voters=(hosts.voters[0], hosts.voters[2]))
        await hosts.heirs["two's"].take(left, lambda message: None)
        connection = await connect(hosts.voters[2], of(hosts, "one's").towards(hosts.voters[2].session))
        voted = await answer(connection, ask(hosts, "one's"))
        assert not voted.is_granted
        assert "not known" in voted.why
        await connection.close()

    tell(story, tmp_path, legacy)


def test_an_epoch_that_was_promised_to_a_host_that_cannot_win_is_passed_over(tmp_path, legacy):
    """Who asks for it again and again gets no vote of those that have promised it, and nobody has the controller."""

    async def story(hosts):
        one, two = (hosts.heirs[session] for session in SESSIONS[1:])
        two.voting.promise(ask(hosts, "head's"))
        assert await one._stand(hosts.roster) == 0
        assert await one._stand(hosts.roster) == 3

    tell(story, tmp_path, legacy)


def test_no_host_makes_the_others_count_up_to_where_numbers_end(tmp_path, legacy):
    """One that lies, in what it asks for, in what it says to have promised, and in what it says to lead."""

    async def story(hosts):
        last = 2**63 - 1
        one, two = (hosts.heirs[session] for session in SESSIONS[1:])
        connection = await connect(hosts.voters[2], of(hosts, "one's").towards(hosts.voters[2].session))
        voted = await answer(connection, ask(hosts, "one's", last))
        assert not voted.is_granted
        assert "further ahead" in voted.why
        await connection.close()
        assert not two.voting.follow(last, public("one's"))
        two.voting.promised = last
        assert await one._stand(hosts.roster) == 0
        two.voting.promised = 1
        assert await one._stand(hosts.roster) == 2

    tell(story, tmp_path, legacy)


def test_a_recorded_proof_is_of_no_use_on_another_connection():
    mine = Acquaintances("one's", {public("two's"): pair_key("one's", "two's")}).towards(public("two's"))
    theirs = Acquaintances("two's", {public("one's"): pair_key("two's", "one's")})
    proof = mine.proof("host", "certificate", "n1", "n2")
    at_door = theirs.at_door(TOKEN).of_kind(proof)
    assert at_door.voter == public("one's")
    assert at_door.is_right(proof, "host", "certificate", "n1", "n2")
    assert not at_door.is_right(proof, "host", "certificate", "other", "n2")
    assert not at_door.is_right(proof, "host", "another", "n1", "n2")
    assert not at_door.is_right(proof, "head", "certificate", "n1", "n2")
    assert not mine.is_right(proof, "head", "certificate", "n1", "n2")  # its own words, sent back
    assert mine.is_right(at_door.proof("head", "certificate", "n1", "n2"), "head", "certificate", "n1", "n2")


@pytest.mark.parametrize("proof", ["voter:", "voter::", "voter:x:y", "voter:" + "z" * 64 + ":0", "voter", ""])
def test_a_proof_that_is_none_is_not_right(proof):
    at_door = Acquaintances("two's", {}).at_door(TOKEN).of_kind(proof)
    assert not at_door.voter
    assert not at_door.is_right(proof, "host", "c", "n1", "n2")


def following(**given):
    return Voting(roster=Roster(epoch=1, number=1, voters=()), **given)


def test_of_two_that_say_that_they_have_the_controller_in_one_epoch_one_is_followed():
    one = following(epoch=1, promised=2, promised_to="a")
    assert not one.follow(2, "b")
    assert not one.follow(2, "")
    assert one.follow(2, "a")
    assert not one.follow(2, "b")
    assert one.follow(2, "")  # the one that it was connected with, whose address the user gave


def test_a_newer_epoch_is_not_believed_of_a_host_that_has_not_proven_who_it_is():
    one = following(epoch=1)
    assert not one.follow(7, "")
    assert one.follow(7, "a")


def test_a_journal_of_a_host_that_is_not_followed_any_more_changes_nothing(tmp_path, legacy):
    async def story(hosts):
        two = hosts.heirs["two's"]
        two.voting.promise(ask(hosts, "one's"))
        said = []
        await two.take(JournalPart(epoch=1, begins_at=0, at=0, data=b"x"), said.append)
        await two.take(Roster(epoch=1, number=9, voters=()), said.append)
        assert said == []
        assert two.roster == hosts.roster
        assert two.replica.age == (0, 0)

    tell(story, tmp_path, legacy)


@pytest.mark.parametrize(
    ("of", "here", "votes"), [("", "", True), ("5", "5", True), ("5", "", False), ("5", "6", False)]
)
def test_only_hosts_of_the_controllers_own_job_vote(tmp_path, legacy, of, here, votes):
    """A pilot's job may end before the run's, and Slurm knows its host under no step of the run."""
    said = []

    async def story():
        heir = Heir(
            tmp_path, session="one", address="127.0.0.1", token=TOKEN, silent_s=9.0, on_led=said.append, job=here
        )
        await heir.take(msgspec.structs.replace(legacy, scheduler_job=of), said.append)
        await heir.close()

    asyncio.run(story())
    assert [type(each) for each in said] == ([Ready] if of == here else [])


def test_the_directory_of_another_run_is_not_the_one_in_which_this_was_begun(tmp_path, legacy):
    begun = tmp_path / "begun"
    begun.mkdir()
    seen = msgspec.structs.replace(legacy, run_dir=str(begun))
    assert begun_at(seen) is None
    (begun / "secret").write_text("another\n")
    assert begun_at(seen) is None
    (begun / "secret").write_text("s\n")
    assert begun_at(seen) == begun
    assert begun_at(legacy) is None
