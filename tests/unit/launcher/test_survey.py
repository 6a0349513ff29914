"""Hosts that are looked at before a run: what is wrong is said in a sentence, and what is right in none."""

import asyncio
import socket

import msgspec
import pytest

from everstep.cli.examine.hosts import render
from everstep.errors import UnreachableError
from everstep.launcher.arguments.hosts import Hosts
from everstep.launcher.survey import answering, meeting
from everstep.launcher.survey.judging import judge
from everstep.wire.joining import JoinToken
from everstep.wire.survey import Facts, Peer

TOKEN = JoinToken("0123456789abcdef")


def facts(number, **more):
    given = {
        "host": f"h{number}",
        "address": f"10.0.0.{number}",
        "port": 1,
        "everstep": "0.1",
        "torch": "2.13",
        "python": "3.11",
        "named": (f"10.0.0.{number}",),
        "interface": "eth0",
        "mtu": 1500,
    }
    return Facts(**(given | more))


HOSTS = [facts(1), facts(2), facts(3)]
OFFSETS = (0.0, 0.2, -0.9)


def test_of_hosts_that_fit_nothing_is_said():
    assert judge(HOSTS, OFFSETS, {}, 3) == []


@pytest.mark.parametrize(
    ("hosts", "offsets", "unreached", "num", "what", "said"),
    [
        (HOSTS, OFFSETS, {}, 4, "missing", "3 of 4 hosts came: h1, h2, h3"),
        (HOSTS, OFFSETS, {(2, 0): "no answer"}, 3, "port", "h3 cannot reach h1 at 10.0.0.1: no answer"),
        (HOSTS, OFFSETS, {(0, 1): "large packets"}, 3, "mtu", "h1 cannot reach h2 at 10.0.0.2: large packets. Give"),
        (HOSTS, (0.0, 0.0, 2.5), {}, 3, "clock", "the clock of h3 is 2.5 s ahead of that of h1"),
        (HOSTS, (0.0, -90.0, 0.0), {}, 3, "clock", "the clock of h2 is 90.0 s behind that of h1"),
        ([*HOSTS[:2], facts(3, torch="2.12")], OFFSETS, {}, 3, "version", "2.12 on h3; 2.13 on h1, h2"),
        ([*HOSTS[:2], facts(3, torch="")], OFFSETS, {}, 3, "version", "2.13 on h1, h2; none on h3"),
        ([*HOSTS[:2], facts(3, everstep="0.2")], OFFSETS, {}, 3, "version", "everstep differs"),
        ([*HOSTS[:2], facts(3, python="3.12")], OFFSETS, {}, 3, "version", "Python differs"),
        ([*HOSTS[:2], facts(3, mtu=9000)], OFFSETS, {}, 3, "mtu", "1500 on h1 (eth0), h2 (eth0); 9000 on h3 (eth0)"),
        ([*HOSTS[:2], facts(3, named=("127.0.1.1",))], OFFSETS, {}, 3, "name", "h3 leads to 127.0.1.1 on that host"),
        ([*HOSTS[:2], facts(3, host="h1")], OFFSETS, {}, 3, "name", "2 hosts are called h1"),
    ],
)
def test_what_is_wrong_is_said_once(hosts, offsets, unreached, num, what, said):
    (found,) = judge(hosts, offsets, unreached, num)
    assert found.what == what
    assert said in found.text


@pytest.mark.parametrize("more", [{"named": ()}, {"mtu": None}, {"named": ("127.0.1.1", "10.0.0.3")}])
def test_what_is_not_known_is_not_accused(more):
    assert judge([*HOSTS[:2], facts(3, **more)], OFFSETS, {}, 3) == []


def meet(num, coming, limit_s=30.0, others=()):
    """The first host's findings, and those of the others."""

    async def story():
        sock = socket.create_server(("127.0.0.1", 0))
        hosts = Hosts(num=num, host="127.0.0.1", port=sock.getsockname()[1])
        leading = meeting.lead(hosts, sock, TOKEN, "2.13", limit_s, lambda text: None)
        coming_here = [meeting.attend(hosts, TOKEN, torch, 30.0, lambda text: None) for torch in coming]
        return await asyncio.gather(leading, *coming_here, *(other(hosts) for other in others), return_exceptions=True)

    return asyncio.run(story())


def test_all_hosts_are_told_the_same():
    first, *others = meet(3, ["2.13", "2.12"])
    assert others == [first, first]
    assert {each.what for each in first.findings} == {"version", "name"}  # one machine has one name
    assert "torch differs: 2.12 on" in render(first)
    assert msgspec.json.decode(msgspec.json.encode(first))["findings"]


def test_who_does_not_come_is_missed():
    (first,) = meet(2, [], limit_s=0.05)
    assert "1 of 2 hosts came" in first.findings[0].text


def test_a_host_that_cannot_be_reached_is_named(monkeypatch):
    async def refuse(peer):
        return "refused"

    monkeypatch.setattr(meeting, "why_not", refuse)
    first, other = meet(2, ["2.13"])
    assert first == other
    assert sum("cannot reach" in each.text for each in first.findings) == 2


def test_who_has_another_token_is_not_looked_at():
    async def stranger(hosts):
        with pytest.raises(UnreachableError, match="join token is not this run's"):
            await meeting.attend(hosts, JoinToken("x" * 16), "2.13", 5.0, lambda text: None)

    first, _ = meet(2, [], limit_s=1.0, others=[stranger])
    assert len(first.hosts) == 1


def at(sock):
    return Peer(host="h", address="127.0.0.1", port=sock.getsockname()[1])


def test_a_path_that_carries_no_large_packets_is_found(monkeypatch):
    monkeypatch.setattr(answering, "LIMIT_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert "do not get there" in asyncio.run(answering.why_not(at(silent)))


def test_a_closed_port_is_found():
    with socket.create_server(("127.0.0.1", 0)) as sock:
        peer = at(sock)
    assert "refused" in asyncio.run(answering.why_not(peer)).lower()


def test_hosts_too_many_that_come_at_once_are_left_out(monkeypatch):
    meeting_now = []

    async def offset(line):
        meeting_now.append(line)
        while len(meeting_now) < 4:
            await asyncio.sleep(0.001)
        return 0.0

    monkeypatch.setattr(meeting, "_offset", offset)
    monkeypatch.setattr(meeting, "_PAIRS_S", 1.0)
    first, *others = meet(3, ["2.13", "2.13", "2.13", "2.13"])
    assert len(first.hosts) == 3
    assert not any("cannot reach" in each.text for each in first.findings)
    assert sum(each == first for each in others) == 2
