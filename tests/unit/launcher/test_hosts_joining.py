"""A host and the first one prove to each other that they know the token, over real TLS connections."""

import asyncio
import contextlib
import os
import socket
import ssl
from pathlib import Path

import pytest

from everstep.engines.hosts import door as doors
from everstep.engines.hosts.door import Door
from everstep.errors import ConfigError, UnreachableError
from everstep.launcher.arguments.hosts import Hosts
from everstep.launcher.reach import reaching
from everstep.launcher.reach import token as tokens
from everstep.launcher.reach.place import claim
from everstep.launcher.reach.reaching import EarlierLife, RefusedError, reach
from everstep.launcher.rundir.keys import Keys
from everstep.version import __version__
from everstep.wire.credentials import CERTIFICATE_NAME, KEY_NAME
from everstep.wire.joining import PROTOCOL, Admitted, Challenge, Join, JoinToken, Proven, Refused, from_head, packed

TOKEN = JoinToken("0123456789abcdef")
JOIN = Join(session="s", host="h", address="a", everstep_version="0", torch_version="0")
ADMITTED = Admitted(run="r", number=1, num_hosts=2, spec=b"{}", port=1)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys")
    Keys(folder, "r1").certify()
    return folder / CERTIFICATE_NAME, folder / KEY_NAME


@contextlib.asynccontextmanager
async def opened_door(certificate, token=TOKEN):
    """The endpoint of a run, and who joined there."""
    joined = []

    async def welcome(join, line):
        joined.append(join)
        line.send(ADMITTED)
        await asyncio.sleep(60)

    sock = socket.create_server(("127.0.0.1", 0))
    door = Door(sock, *certificate, token, welcome)
    await door.open()
    try:
        yield Hosts(num=2, host="127.0.0.1", port=sock.getsockname()[1], reach_limit_s=0.3), joined
    finally:
        await door.close()


def ignore(_text):
    pass


def test_who_has_the_token_gets_in(certificate):
    async def story():
        async with opened_door(certificate) as (hosts, joined):
            connection = await reach(hosts, lambda: TOKEN, ignore)
            connection.send(JOIN)
            assert await connection.receive() == ADMITTED
            await connection.close()
            assert joined == [JOIN]

    asyncio.run(story())


@pytest.mark.parametrize(
    ("version", "why"),
    [
        (__version__, f"both are everstep {__version__}, but of different states of its code .*the same commit"),
        ("0.0.7", f"it has everstep '0.0.7', this run everstep {__version__}: install the same on all hosts"),
    ],
)
def test_who_joins_in_another_way_is_told_what_differs(certificate, monkeypatch, version, why):
    async def story():
        async with opened_door(certificate) as (hosts, joined):
            monkeypatch.setattr(reaching, "PROTOCOL", PROTOCOL - 1)
            monkeypatch.setattr(reaching, "__version__", version)
            with pytest.raises(RefusedError, match=why):
                await reach(hosts, lambda: TOKEN, ignore)
            assert joined == []

    asyncio.run(story())


def test_who_has_another_token_is_refused_with_a_sentence(certificate):
    async def story():
        async with opened_door(certificate) as (hosts, joined):
            with pytest.raises(RefusedError, match="refuses this host: its join token is not this run's") as caught:
                await reach(hosts, lambda: JoinToken("x" * 16), ignore)
            assert caught.value.exit_code == ConfigError.exit_code
            assert joined == []

    asyncio.run(story())


def test_who_stands_in_between_with_another_certificate_is_found_out(certificate, tmp_path):
    """It passes on every message of both sides, decrypted and encrypted again."""
    Keys(tmp_path, "r2").certify()
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(tmp_path / CERTIFICATE_NAME, tmp_path / KEY_NAME)
    client = ssl._create_unverified_context()

    async def story():
        async with opened_door(certificate) as (hosts, joined):

            async def pass_on(reader, writer):
                with contextlib.suppress(OSError):
                    while data := await reader.read(4096):
                        writer.write(data)
                writer.transport.abort()

            async def between(reader, writer):
                far = await asyncio.open_connection(hosts.host, hosts.port, ssl=client)
                await asyncio.gather(pass_on(reader, far[1]), pass_on(far[0], writer))

            thief = await asyncio.start_server(between, "127.0.0.1", 0, ssl=server)
            port = thief.sockets[0].getsockname()[1]
            with pytest.raises(RefusedError):
                await reach(Hosts(num=2, host="127.0.0.1", port=port), lambda: TOKEN, ignore)
            assert joined == []
            thief.close()
            await asyncio.sleep(0.05)

    asyncio.run(story())


def test_who_answers_without_the_token_is_not_believed(certificate):
    async def pretend(reader, writer):
        writer.write(packed(Challenge(nonce="n")))
        await reader.read(10)
        writer.write(packed(Proven(proof="00")))
        with contextlib.suppress(OSError):
            await reader.read()
        writer.transport.abort()

    async def story():
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*certificate)
        server = await asyncio.start_server(pretend, "127.0.0.1", 0, ssl=context)
        hosts = Hosts(num=2, host="127.0.0.1", port=server.sockets[0].getsockname()[1])
        with pytest.raises(RefusedError, match="does not know the join token"):
            await reach(hosts, lambda: TOKEN, ignore)
        server.close()
        await asyncio.sleep(0.05)

    asyncio.run(story())


@pytest.mark.parametrize("code", [0, -1, 256, 4])
def test_who_answers_without_the_token_does_not_end_a_host_with_success(certificate, code):
    async def pretend(reader, writer):
        writer.write(packed(Challenge(nonce="n")))
        await reader.read(10)
        writer.write(packed(Refused(why="\x1b[2Jall done", exit_code=code)))
        with contextlib.suppress(OSError):
            await reader.read()
        writer.transport.abort()

    async def story():
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*certificate)
        server = await asyncio.start_server(pretend, "127.0.0.1", 0, ssl=context)
        hosts = Hosts(num=2, host="127.0.0.1", port=server.sockets[0].getsockname()[1])
        with pytest.raises(RefusedError) as caught:
            await reach(hosts, lambda: TOKEN, ignore)
        assert caught.value.exit_code == (code if code == 4 else ConfigError.exit_code)
        server.close()
        await asyncio.sleep(0.05)

    asyncio.run(story())


@pytest.mark.parametrize("garbage", [b"\0\0\0\5hello", b"\xff\xff\xff\xff", b"", b"GET / HTTP/1.1\r\n\r\n"])
def test_garbage_costs_a_connection(certificate, garbage, monkeypatch):
    monkeypatch.setattr(doors, "GREETING_S", 0.2)

    async def story():
        async with opened_door(certificate) as (hosts, joined):
            reader, writer = await asyncio.open_connection(hosts.host, hosts.port, ssl=ssl._create_unverified_context())
            assert isinstance(await from_head(reader), Challenge)
            writer.write(garbage)
            with pytest.raises((EOFError, OSError)):
                await from_head(reader)
            writer.transport.abort()
            assert joined == []
            await (await reach(hosts, lambda: TOKEN, ignore)).close()

    asyncio.run(story())


def strange(hosts, number):
    """Connections from another address, of which the kernel names no owner that counts as ours."""
    crowd = []
    for _ in range(number):
        crowd.append(socket.socket())
        crowd[-1].bind(("127.0.0.2", 0))
        crowd[-1].connect((hosts.host, hosts.port))
    return crowd


def num_open():
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize("hello", [b"", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00"])
def test_a_crowd_at_the_endpoint_keeps_no_host_out_and_fills_no_log(certificate, caplog, monkeypatch, hello):
    limit_s = doors.GREETING_S
    monkeypatch.setattr(doors, "GREETING_S", 0.5)  # for the crowd; whoever joins has as long as ever

    async def story():
        with caplog.at_level("INFO"), contextlib.ExitStack() as opened:
            async with opened_door(certificate) as (hosts, _):
                before = num_open() + 3 * doors.MAX_STRANGERS // 2
                for stranger in strange(hosts, 3 * doors.MAX_STRANGERS // 2):
                    opened.enter_context(stranger)
                    with contextlib.suppress(OSError):
                        stranger.send(hello)
                await asyncio.sleep(0)
                async with asyncio.timeout(60):
                    while num_open() - before > doors.MAX_STRANGERS // 8:
                        await asyncio.sleep(0.01)
                monkeypatch.setattr(doors, "GREETING_S", limit_s)
                connection = await reach(hosts, lambda: TOKEN, ignore)
                connection.send(JOIN)
                assert await connection.receive() == ADMITTED
                await connection.close()
        assert len([record for record in caplog.records if record.levelname != "DEBUG"]) < 5

    asyncio.run(story())


def test_an_endpoint_where_nobody_is_says_what_was_tried():
    sock = socket.create_server(("127.0.0.1", 0))
    port = sock.getsockname()[1]
    sock.close()
    hosts = Hosts(num=2, host="127.0.0.1", port=port, reach_limit_s=0.3)
    with pytest.raises(UnreachableError, match=rf"127.0.0.1:{port} \(127.0.0.1\): nothing listens there; tried for"):
        asyncio.run(reach(hosts, lambda: TOKEN, ignore))


def test_the_endpoint_is_claimed_once_and_only_by_who_has_its_address():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert claim(Hosts(num=2, host="127.0.0.1", port=port)) is None
    with claim(Hosts(num=2, host="LocalHost", port=port)) as sock:
        assert sock.getsockname() == ("127.0.0.1", port)
    assert claim(Hosts(num=2, host="203.0.113.9", port=port)) is None
    assert claim(Hosts(num=2, host="no-such-name.invalid", port=port)) is None


def test_a_name_that_leads_to_loopback_is_refused_where_it_would_listen(monkeypatch):
    monkeypatch.setattr("everstep.launcher.reach.place.addresses", lambda name: ["127.0.1.1"])
    with pytest.raises(ConfigError, match=r"head is 127\.0\.1\.1 on this host"):
        claim(Hosts(num=2, host="head", port=0))


def test_the_token_is_the_environments_and_reaches_no_rank(tmp_path):
    environ = {tokens.VARIABLE: "0123456789abcdef\n", tokens.FILE_VARIABLE: "/nothing"}
    assert tokens.given(environ).proof("a", "", "", "") == TOKEN.proof("a", "", "", "")
    assert environ == {}
    assert tokens.given({}) is None
    path = tmp_path / "token"
    path.write_text("0123456789abcdef\n")
    path.chmod(0o600)
    assert tokens.given({tokens.FILE_VARIABLE: str(path)}) is not None
    assert "0123" not in repr(TOKEN)


@pytest.mark.parametrize(("text", "mode", "words"), [("short", 0o600, "needs at least 16"), ("x" * 16, 0o644, "chmod")])
def test_a_token_that_is_none_is_refused(tmp_path, monkeypatch, text, mode, words):
    path = tmp_path / "token"
    path.write_text(text)
    path.chmod(mode)
    _own(monkeypatch)
    with pytest.raises(ConfigError, match=words):
        tokens.given({tokens.FILE_VARIABLE: str(path)})


@pytest.mark.parametrize("text", ["0123456789abcdef\nanother line that is long", "x" * 4097])
def test_a_file_that_holds_more_than_a_token_is_the_wrong_one(tmp_path, text):
    path = tmp_path / "token"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(ConfigError, match=r"token has more than one line, or 4096 bytes"):
        tokens.given({tokens.FILE_VARIABLE: str(path)})


@pytest.mark.parametrize("data", [b"0123456789abcdef\r\n\n", b"\xef\xbb\xbf0123456789abcdef\n", b"  0123456789abcdef"])
def test_a_token_file_may_come_from_any_editor(tmp_path, data):
    path = tmp_path / "token"
    path.write_bytes(data)
    path.chmod(0o600)
    found = tokens.given({tokens.FILE_VARIABLE: str(path)})
    assert found is not None
    assert found.reveal() == TOKEN.reveal()


def _own(monkeypatch):
    """Files are a common user's: of root's all are accepted, also those that others may read."""
    real = os.fstat
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(os, "fstat", lambda fd: os.stat_result([*real(fd)[:4], 1000, *real(fd)[5:]]))


def test_a_token_that_the_first_host_made_is_found_where_a_directory_is_shared(tmp_path, monkeypatch):
    monkeypatch.setenv("EVERSTEP_HOME", str(tmp_path / "home"))
    hosts = Hosts(num=2, host="head", port=29400)
    assert tokens.shared(hosts, str(tmp_path)) is None
    made, places = tokens.make(hosts, tmp_path)
    assert len(places) == 2
    assert all(place.stat().st_mode & 0o077 == 0 for place in places)
    for run_dir in ("", str(tmp_path)):
        assert tokens.shared(hosts, run_dir).proof("a", "", "", "") == made.proof("a", "", "", "")
    tokens.forget(places)
    assert tokens.shared(hosts, str(tmp_path)) is None


@pytest.mark.parametrize("kind", ["link", "readable"])
def test_a_token_that_is_only_found_is_no_file_that_everybody_knows(tmp_path, monkeypatch, kind):
    """Somebody else made the directory before, and answers at the endpoint."""
    monkeypatch.setenv("EVERSTEP_HOME", str(tmp_path / "home"))
    known = tmp_path / "os-release"
    known.write_text("everybody knows this text")
    known.chmod(0o644)
    found = tmp_path / "run" / tokens.NAME
    found.parent.mkdir()
    if kind == "link":
        found.symlink_to(known)
    else:
        known.rename(found)
    with pytest.raises(ConfigError, match=r"cannot be read|chmod 600"):
        tokens.shared(Hosts(num=2, host="head", port=29400), str(found.parent))


def test_who_is_only_in_its_own_way_asks_again_for_a_while_and_says_so_once(monkeypatch):
    monkeypatch.setattr(reaching, "EARLIER_LIFE_S", 0.2)
    monkeypatch.setattr(reaching, "EARLIER_LIFE_PAUSE_S", 0.05)
    said, asked = [], []
    refused = RefusedError("no place for h1", 2, may_pass=True)

    async def story():
        earlier = EarlierLife(said.append)

        async def ask():
            while True:
                await earlier.wait(refused)
                asked.append(1)

        with pytest.raises(RefusedError, match="no place for h1"):
            await ask()
        with pytest.raises(RefusedError, match="another version"):
            await EarlierLife(said.append).wait(RefusedError("another version", 2))

    asyncio.run(story())
    assert len(asked) > 1
    assert said == [
        "the run still counts an earlier start of this host as there; asking again for 0 s at most: no place for h1"
    ]
