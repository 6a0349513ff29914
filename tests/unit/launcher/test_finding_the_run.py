"""A host that starts late finds the run wherever it goes on by now, or is told what was tried."""

import asyncio
import socket
import time

import pytest
from asked_hosts import ENDPOINT, TOKEN, certificate, note, others
from free_ports import free_port

from everstep.errors import UnreachableError
from everstep.journal.beside import succession
from everstep.launcher.arguments.hosts import Hosts, parse_endpoints
from everstep.launcher.heirs import finding
from everstep.launcher.heirs.finding import Noted, Search
from everstep.launcher.reach import reaching
from everstep.launcher.reach.reaching import RefusedError, reach
from everstep.launcher.succession.returning import find_led
from everstep.wire.heirs import HAS_CONTROLLER
from everstep.wire.joining import JoinToken

__all__ = ["certificate", "note", "others"]


def hosts_at(*places, limit_s=0.3):
    (host, port), *more = places
    return Hosts(num=3, host=host, port=port, others=tuple(more), reach_limit_s=limit_s)


def nowhere():
    return "127.0.0.1", free_port()


def reached(hosts, noted=None, token=TOKEN):
    """The port of the host that was joined."""

    async def story():
        connection = await reach(hosts, lambda: token, lambda _: None, Search(noted).connect)
        await connection.close()
        return connection.at

    return asyncio.run(story())


def at(other):
    return f"127.0.0.1:{other.door[1]}"


def test_the_endpoint_alone_is_enough_while_the_controller_is_there(others):
    others[0].why = HAS_CONTROLLER
    assert reached(hosts_at(others[0].door)) == at(others[0])


def test_where_the_user_says_that_it_may_be(others):
    others[1].why = HAS_CONTROLLER
    assert reached(hosts_at(nowhere(), nowhere(), others[1].door)) == at(others[1])


def test_a_host_that_is_asked_says_where_it_is(others):
    others[1].why = HAS_CONTROLLER
    others[0].at = others[1].door
    assert reached(hosts_at(nowhere(), others[0].door)) == at(others[1])


@pytest.mark.parametrize("named", [("127.0.0.1", 99_999), ("127.0.0.1", -1), ("a\0b", 1), ("x" * 70, 1), ("", 2**63)])
def test_a_host_that_names_what_is_no_address_is_passed_over(others, named):
    others[0].at = named
    assert asyncio.run(Search().look(hosts_at(nowhere(), others[0].door), lambda: TOKEN)) is None
    assert others[0].num_asked == 1


def test_a_first_host_that_came_back_and_joined_says_so_at_its_endpoint(others):
    """It has no controller, and its address is all that the new host knows."""
    others[1].why = HAS_CONTROLLER
    others[0].at = others[1].door
    assert reached(hosts_at(others[0].door)) == at(others[1])


def test_of_two_that_have_the_controller_the_newer_epoch_counts(others):
    """The older one may be cut off from the hosts that elected another."""
    for epoch, other in enumerate(others, start=1):
        other.why, other.epoch = HAS_CONTROLLER, epoch
    assert reached(hosts_at(*(each.door for each in others))) == at(others[1])


def test_a_host_that_was_in_the_run_before_remembers_where_its_hosts_were(note, others):
    others[1].why = HAS_CONTROLLER
    note(("127.0.0.1", free_port()), others[1].door)
    hosts = hosts_at(ENDPOINT)
    assert reached(hosts, Noted.of(hosts, "")) == at(others[1])


def test_another_run_at_a_port_that_is_remembered_is_not_joined(note, others, monkeypatch):
    """The same token may serve all runs of a user, and ports are given again."""
    monkeypatch.setattr(reaching, "SILENT_S", 0.5)
    others[1].why, others[1].endpoints = HAS_CONTROLLER, (("10.0.0.9", 29400),)
    note(others[1].door)
    hosts = hosts_at(ENDPOINT)
    with pytest.raises(UnreachableError, match="hosts of another run are there"):
        reached(hosts, Noted.of(hosts, ""))


def test_what_was_tried_is_said_with_what_to_do(others):
    lost, gone = nowhere(), nowhere()
    others[0].why = "the controller is not here"
    with pytest.raises(UnreachableError) as caught:
        reached(hosts_at(lost, gone))
    text = str(caught.value)
    assert f"cannot join the run at 127.0.0.1:{lost[1]} (127.0.0.1): nothing listens there" in text
    assert f"127.0.0.1:{gone[1]}: nothing listens there" in text
    assert f"name others that are in it: --rdzv-endpoint 127.0.0.1:{lost[1]},127.0.0.1:{gone[1]},..." in text


def test_a_wrong_token_at_the_endpoint_is_said_at_once(others):
    others[0].why = HAS_CONTROLLER
    began = time.monotonic()
    with pytest.raises(RefusedError, match="its join token is not this run's"):
        reached(hosts_at(others[0].door, nowhere(), limit_s=60.0), token=JoinToken("quite another token"))
    assert time.monotonic() - began < 20


def test_hosts_without_a_controller_are_waited_for_while_they_vote(others, monkeypatch):
    monkeypatch.setattr(finding, "ELECTION_S", 0.5)
    with pytest.raises(UnreachableError, match="the controller is not here, and no other host is known to have it"):
        reached(hosts_at(others[0].door))
    assert others[0].num_asked > 1


def test_a_first_host_with_an_empty_disk_finds_its_run_where_the_user_says_that_it_may_be(
    tmp_path, monkeypatch, others
):
    monkeypatch.setenv("EVERSTEP_HOME", str(tmp_path))
    others[0].why = HAS_CONTROLLER
    with socket.create_server(("127.0.0.1", 0)) as sock:
        own = sock.getsockname()[:2]
        led = find_led(hosts_at(own, nowhere(), others[0].door), own, "", TOKEN)
        assert (led.hosts.host, led.hosts.port) == others[0].door
        others[0].why = "the controller is not here"
        monkeypatch.setattr("everstep.launcher.succession.returning.ELECTION_S", 0.1)
        with pytest.raises(UnreachableError, match="Nothing was started"):
            find_led(hosts_at(own, others[0].door), own, "", TOKEN)
        assert find_led(hosts_at(own, nowhere()), own, "", TOKEN) is None


def test_the_newest_note_of_this_endpoint_counts(tmp_path, monkeypatch):
    monkeypatch.setenv("EVERSTEP_HOME", str(tmp_path))
    told = {"epoch": 2, "host": "h1", "heirs": ("h2",), "needed": 2}
    for number, (kind, endpoints) in enumerate([("runs", ()), ("hosts", (ENDPOINT,)), ("hosts", (("head", 29500),))]):
        folder = tmp_path / kind / f"r{number}"
        folder.mkdir(parents=True)
        doors = (ENDPOINT, ("10.0.0.2", 1)) if kind == "runs" else (("10.0.0.3", number),)
        monkeypatch.setattr(succession.time, "time", lambda number=number: 1000.0 + number)
        succession.note(folder, doors=doors, endpoints=endpoints, **told)
    assert Noted.of(hosts_at(ENDPOINT), "").doors == (("10.0.0.3", 1),)
    assert Noted.of(hosts_at(("head", 29500)), "").doors == (("10.0.0.3", 2),)
    assert Noted.of(hosts_at(("head", 29501)), "") is None


@pytest.mark.parametrize(
    ("text", "places"),
    [
        ("head", [("head", 29400)]),
        ("head:1", [("head", 1)]),
        ("head:1,h1,[fe80::1]:7,10.0.0.3:2,", [("head", 1), ("h1", 1), ("fe80::1", 7), ("10.0.0.3", 2)]),
    ],
)
def test_an_endpoint_may_have_others_beside_it(text, places):
    assert parse_endpoints(text) == places
