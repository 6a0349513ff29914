"""A first host that is started again asks, before it begins a run, whether its run goes on elsewhere."""

import asyncio
import os
import socket
import threading
from pathlib import Path

import pytest

from everstep.engines.hosts.door import Door
from everstep.errors import UnreachableError
from everstep.journal.beside import succession
from everstep.launcher.arguments.hosts import Hosts
from everstep.launcher.heirs import returning
from everstep.launcher.heirs.returning import find_led
from everstep.launcher.rundir.keys import Keys
from everstep.wire.credentials import CERTIFICATE_NAME, KEY_NAME
from everstep.wire.heirs import HAS_CONTROLLER, Vote
from everstep.wire.joining import JoinToken

TOKEN = JoinToken("a token that only this test has")
ENDPOINT = ("127.0.0.1", 29400)
HOSTS = Hosts(num=3, host=ENDPOINT[0], port=ENDPOINT[1], node_rank=0)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("keys")
    Keys(folder, "r1").certify()
    return folder / CERTIFICATE_NAME, folder / KEY_NAME


class Other:
    """A host that answers `why` to who asks where the controller is."""

    def __init__(self, certificate: tuple[Path, Path], *, token: JoinToken = TOKEN) -> None:
        self.why = "the controller is not here"
        self.num_asked = 0
        self._sock = socket.create_server(("127.0.0.1", 0))
        self.door = self._sock.getsockname()[:2]
        self._certificate, self._token = certificate, token
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._live(),))
        self._over = asyncio.Event()
        self._thread.start()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()
        self._loop.close()

    async def _live(self) -> None:
        door = Door(self._sock, *self._certificate, self._token, None, on_question=self._answer)
        await door.open()
        await self._over.wait()
        await door.close()

    async def _answer(self, question, line) -> None:
        self.num_asked += 1
        line.send(Vote(is_granted=False, epoch=1, why=self.why))


@pytest.fixture
def others(certificate):
    made = [Other(certificate), Other(certificate)]
    yield made
    for each in made:
        each.close()


@pytest.fixture
def note(tmp_path, monkeypatch):
    monkeypatch.setenv("EVERSTEP_HOME", str(tmp_path))

    def write(*doors, needed=2, endpoint=ENDPOINT):
        folder = tmp_path / "runs" / "job"
        folder.mkdir(parents=True)
        heirs = tuple(f"h{number}" for number in range(1, len(doors) + 1))
        succession.note(folder, epoch=1, host="h0", heirs=heirs, needed=needed, doors=(endpoint, *doors))

    return write


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return sock.getsockname()[1]


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
