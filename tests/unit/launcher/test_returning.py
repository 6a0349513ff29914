"""A first host that is started again asks, before it begins a run, whether its run goes on elsewhere."""

import errno
import os
import threading

import pytest
from asked_hosts import ENDPOINT, TOKEN, certificate, note, others
from free_ports import free_port

from everstep.errors import UnreachableError
from everstep.journal.beside import succession
from everstep.launcher.arguments.hosts import Hosts
from everstep.launcher.heirs import finding
from everstep.launcher.succession import returning
from everstep.launcher.succession.returning import find_led
from everstep.wire.heirs import HAS_CONTROLLER
from everstep.wire.joining import JoinToken

__all__ = ["certificate", "note", "others"]
HOSTS = Hosts(num=3, host=ENDPOINT[0], port=ENDPOINT[1], node_rank=0)


def test_it_joins_who_has_the_controller_in_any_place_that_is_free(note, others, capsys):
    others[1].why = HAS_CONTROLLER
    note(("127.0.0.1", free_port()), others[0].door, others[1].door)
    led = find_led(HOSTS, ENDPOINT, "", TOKEN)
    assert (led.hosts.host, led.hosts.port, led.hosts.node_rank) == (*others[1].door, None)
    assert led.token is TOKEN
    assert "run job, which this host began, continues on another one: joining it at" in capsys.readouterr().err


def test_it_waits_for_the_election(note, others, monkeypatch):
    note(*(each.door for each in others))
    monkeypatch.setattr(returning, "AGAIN_S", 0.01)
    threading.Timer(0.3, lambda: setattr(others[0], "why", HAS_CONTROLLER)).start()
    assert find_led(HOSTS, ENDPOINT, "", TOKEN).hosts.port == others[0].door[1]
    assert others[0].num_asked > 1


def test_no_run_begins_beside_hosts_that_have_no_controller(note, others, monkeypatch):
    note(*(each.door for each in others))
    monkeypatch.setattr(returning, "ELECTION_S", 0.1)
    with pytest.raises(UnreachableError, match=r"are still there .* none has the controller\. Nothing was started"):
        find_led(HOSTS, ENDPOINT, "", TOKEN)


def test_a_run_begins_where_nobody_is_there_any_more(note):
    note(("127.0.0.1", free_port()), ("127.0.0.1", free_port()))
    assert find_led(HOSTS, ENDPOINT, "", TOKEN) is None


@pytest.mark.parametrize("is_up_again", [True, False])
def test_a_machine_whose_network_is_not_up_yet_looks_again(note, others, monkeypatch, is_up_again):
    """It was switched on a moment ago. To begin a second run beside the first one is the worst that it could do."""
    others[0].why = HAS_CONTROLLER
    note(*(each.door for each in others))
    monkeypatch.setattr(returning, "AGAIN_S", 0.01)
    monkeypatch.setattr(returning, "UNCLEAR_S", 30.0 if is_up_again else 0.1)
    attempt, tries = finding.attempt, []

    async def attempt_later(*given):
        tries.append(given)
        if is_up_again and len(tries) > 3:
            return await attempt(*given)
        raise OSError(errno.ENETUNREACH, "Network is unreachable")

    monkeypatch.setattr(finding, "attempt", attempt_later)
    led = find_led(HOSTS, ENDPOINT, "", TOKEN)
    assert (led is not None) is is_up_again
    assert len(tries) > 3


@pytest.mark.parametrize("case", ["no note", "another endpoint", "nobody may succeed", "another token"])
def test_nobody_else_is_taken_for_the_run(note, others, case):
    others[0].why = HAS_CONTROLLER
    if case != "no note":
        note(
            *(each.door for each in others),
            needed=3 if case == "nobody may succeed" else 2,
            endpoint=("127.0.0.1", 29500) if case == "another endpoint" else ENDPOINT,
        )
    token = JoinToken("the token of quite another run") if case == "another token" else TOKEN
    assert find_led(HOSTS, ENDPOINT, "", token) is None


def test_a_run_directory_that_is_given_is_looked_at_too(tmp_path, others, monkeypatch):
    monkeypatch.setenv("EVERSTEP_HOME", str(tmp_path / "home"))
    others[0].why = HAS_CONTROLLER
    doors = (ENDPOINT, *(each.door for each in others))
    succession.note(tmp_path, epoch=1, host="h0", heirs=("h1", "h2"), needed=2, doors=doors)
    assert find_led(HOSTS, ENDPOINT, os.fspath(tmp_path), TOKEN) is not None
