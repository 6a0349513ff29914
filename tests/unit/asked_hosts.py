"""Hosts that answer who has the controller, at doors of their own, and what this machine has noted of their run."""

import asyncio
import socket
import threading
from pathlib import Path

import pytest

from everstep.engines.hosts.door import Door
from everstep.journal.beside import succession
from everstep.launcher.rundir.keys import Keys
from everstep.wire.credentials import CERTIFICATE_NAME, KEY_NAME
from everstep.wire.heirs import Vote
from everstep.wire.joining import JoinToken

TOKEN = JoinToken("a token that only this test has")
ENDPOINT = ("127.0.0.1", 29400)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("keys")
    Keys(folder, "r1").certify()
    return folder / CERTIFICATE_NAME, folder / KEY_NAME


class Other:
    """A host that answers `why` to who asks where the controller is."""

    def __init__(self, certificate: tuple[Path, Path], *, token: JoinToken = TOKEN) -> None:
        self.why, self.endpoints, self.at = "the controller is not here", (ENDPOINT,), None
        self.num_asked, self.epoch = 0, 1
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
        line.send(Vote(is_granted=False, epoch=self.epoch, why=self.why, endpoints=self.endpoints, at=self.at))


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
