"""A run directory that somebody else filled, read by each verb: an answer or a sentence, soon, in little memory, and
nothing of the reader's leaves this machine."""

import contextlib
import io
import json
import os
import resource
import shutil
import signal
import socket
import threading
from pathlib import Path

import pytest

from everstep.cli.ask import post
from everstep.cli.main import main
from everstep.errors import EverstepError
from everstep.journal.runs import RunDir
from everstep.linux.regular import read_regular, regular

GOLDEN = Path(__file__).parents[2] / "golden/journal.jsonl"
LIMIT_S = 20
MORE_BYTES = 3 << 30
FILES = (
    "journal.jsonl", "journal.lock", "progress.json", "succession.json", "collectives.json", "paces.json",
    "controller.json", "token", "notices.json", "spec.json", "nodes/n0/credentials.json", "variables/v1.json",
    "nodes/n0/senses.json", "logs/gen-0/rank-0/stdout.log", "evidence/i1/rank-0-flight.json",
)  # fmt: skip
VERBS = (
    "status", "status --json", "incident ls", "incident i1", "explain i1", "goodput", "report", "logs", "collectives",
    "doctor", "stop", "restart", "drill kill-rank 0 --run", "top --once", "top --once --view ranks", "bundle i1",
)  # fmt: skip


def pipe(path):
    os.mkfifo(path)


def endless(path):
    path.symlink_to("/dev/zero")


def deep(path):
    path.write_bytes(b'{"x":' + b"[" * 200_000 + b"]" * 200_000 + b"}")


def sparse(path):
    path.touch()
    os.truncate(path, 1 << 42)


def circle(path):
    path.symlink_to(path.name)


def sockets(path):
    server = socket.socket(socket.AF_UNIX)
    try:
        server.bind(f"/proc/self/fd/{os.open(path.parent, os.O_PATH)}/{path.name}")
    finally:
        server.close()


PLANTS = (pipe, endless, deep, sparse, circle, sockets, Path.mkdir)


@pytest.fixture
def foreign(tmp_path, monkeypatch):
    monkeypatch.setenv("EVERSTEP_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("everstep.cli.ask.RETRY_FOR_S", 0.0)
    monkeypatch.setattr("everstep.cli.ask.ABSENT_FOR_S", 0.0)
    folder = tmp_path / "theirs"
    for name in ("evidence/i1", "logs/gen-0/rank-0", "nodes/n0", "variables"):
        (folder / name).mkdir(parents=True)
    shutil.copy(GOLDEN, folder / "journal.jsonl")
    return folder


@contextlib.contextmanager
def limits():
    def late(*_):
        raise AssertionError(f"no answer within {LIMIT_S} s")

    before, soft = signal.signal(signal.SIGALRM, late), resource.getrlimit(resource.RLIMIT_AS)
    have = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (have + MORE_BYTES, soft[1]))
    signal.alarm(LIMIT_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
        resource.setrlimit(resource.RLIMIT_AS, soft)


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
@pytest.mark.parametrize("name", FILES)
def test_no_verb_waits_for_a_file_of_theirs_or_fails_on_it(foreign, capfd, name, plant):
    path = foreign / name
    path.unlink(missing_ok=True)
    plant(path)
    if name == "token":
        (foreign / "controller.json").write_text('{"pid":1,"port":1}')
    for verb in VERBS:
        with limits():
            main([*verb.split(), str(foreign)])
        for left in foreign.parent.glob("*.tar.gz"):
            left.unlink()
    assert "Traceback" not in capfd.readouterr().err


class Listener:
    """Their controller: keeps what it hears, and answers whatever it is told to."""

    def __init__(self, answer=b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"):
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        self.heard = b""
        self._answer = answer
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._server.accept()
                with connection:
                    self.heard += connection.recv(65536)
                    for piece in [self._answer] if isinstance(self._answer, bytes) else self._answer:
                        connection.sendall(piece)

    def close(self):
        self._server.close()


def ours(foreign, listener):
    (foreign / "controller.json").write_text(json.dumps({"pid": 1, "port": listener.port}))
    return RunDir(foreign)


def test_a_link_in_the_place_of_their_token_sends_nothing_of_ours(foreign, tmp_path):
    mine = tmp_path / "key-of-mine"
    mine.write_text("0123456789abcdef")
    listener = Listener()
    (foreign / "token").symlink_to(mine)
    with pytest.raises(EverstepError):
        post(ours(foreign, listener), "/api/stop", {})
    assert listener.heard == b""
    listener.close()


@pytest.mark.parametrize(
    "place", [{"host": "\x00"}, {"host": "a" * 70}, {"host": "."}, {"port": 1 << 70}, {"port": -1}]
)
def test_an_address_that_is_none_is_a_sentence(foreign, place):
    (foreign / "controller.json").write_text(json.dumps({"pid": 1, "port": 1, **place}))
    (foreign / "token").write_text("abc")
    with pytest.raises(EverstepError):
        post(RunDir(foreign), "/api/stop", {})


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 500000\r\n\r\n" + b"[" * 500_000,
        b"HTTP/1.1 200 OK\r\nContent-Length: 9000000000\r\n\r\n" + bytes(17 << 20),
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n\xff\xfe",
        b"HTTP/1.1 \xff OK\r\n\r\n{}",
        [b"HTTP/1.1 200 OK\r\n", *[b"X: y\r\n"] * 1000],
    ],
)
def test_an_answer_that_is_none_is_a_sentence(foreign, answer):
    listener = Listener(answer)
    (foreign / "token").write_text("abc")
    with limits(), pytest.raises(EverstepError):
        post(ours(foreign, listener), "/api/stop", {})
    listener.close()


def test_who_answers_a_byte_now_and_then_is_left(foreign, monkeypatch):
    monkeypatch.setattr("everstep.cli.ask._ANSWER_S", 0.5)
    over = threading.Event()

    def slowly():
        yield b"HTTP/1.1 200 OK\r\n"
        while not over.wait(0.1):
            yield b"X"

    listener = Listener(slowly())
    (foreign / "token").write_text("abc")
    with limits(), pytest.raises(EverstepError):
        post(ours(foreign, listener), "/api/stop", {})
    over.set()
    listener.close()


@pytest.mark.parametrize("verb", ["doctor", "drill kill-rank 0 --run", "restart"])
def test_what_their_controller_answers_neither_leads_elsewhere_nor_steers_the_terminal(foreign, capfd, verb):
    body = json.dumps({"request": "../../x", "drill": "\x1b[2J", "incident": "\x1b[2J\u202e"}).encode()
    listener = Listener(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
    (foreign / "token").write_text("abc")
    ours(foreign, listener)
    with limits():
        main([*verb.split(), str(foreign)])
    said = capfd.readouterr()
    assert "Traceback" not in said.err
    assert not {"\x1b", "\u202e"} & set(said.out + said.err)
    listener.close()


def test_json_for_programs_steers_no_terminal_either(foreign, capfd):
    text = (foreign / "journal.jsonl").read_text()
    (foreign / "journal.jsonl").write_text(text.replace("train.py:212", "la\u009b2J\u202e\U000e0001bel\x7f"))
    assert main(["status", "--json", str(foreign)]) == 0
    said = capfd.readouterr().out
    assert "la\u009b2J\u202e\U000e0001bel\x7f" in json.dumps(json.loads(said), ensure_ascii=False), (
        "the same for a program"
    )
    assert all(char.isprintable() or char == "\n" for char in said)


def test_a_regular_file_is_read_to_its_limit(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"abcd")
    link = tmp_path / "link"
    link.symlink_to(path)
    assert read_regular(path, 4) == read_regular(link, 4) == b"abcd"
    for refused in (lambda: read_regular(path, 3), lambda: read_regular(link, follow=False), lambda: regular(tmp_path)):
        with pytest.raises(OSError):
            refused()
    with regular(path) as file:
        assert isinstance(file, io.BufferedReader)
