"""The head of a request, in whatever pieces it comes."""

import asyncio
import io
import socket

import pytest
from aiohttp import ClientSession, web
from hypothesis import given
from hypothesis import strategies as st

from everstep.controller.peers import door, listening
from everstep.controller.peers.gate import Gate
from everstep.controller.peers.head import MAX_BYTES, Head, NoRequestError
from everstep.wire.credentials import RunSecret

WHOLE = b"POST /api/stop?x=1 HTTP/1.1\r\nHost: a\r\nCookie: " + b"c" * 9000 + b"\r\n\r\n" + b"body\r\n\r\n"


def give(data: bytes, cuts: list[int]) -> tuple[bytes | str | None, int]:
    """What became of it, and how many bytes had been given until then."""
    head, given_, begin = Head(), 0, 0
    for end in [*sorted(cut % (len(data) + 1) for cut in cuts), len(data)]:
        given_ = end
        try:
            found = head.add(data[begin:end])
        except NoRequestError as error:
            return str(error), given_
        if found is not None:
            return found, given_
        begin = end
    return None, given_


@given(st.lists(st.integers(0, 20_000), max_size=12))
def test_a_whole_head_is_handed_on_with_what_came_with_it(cuts):
    found, num_given = give(WHOLE, cuts)
    assert found == WHOLE[:num_given]
    assert num_given >= WHOLE.index(b"\r\n\r\n") + 4


@pytest.mark.parametrize(
    "said",
    [
        b"\x16\x03\x01\x02\x00\x01",
        b"get / HTTP/1.1\r\n",
        b"GET / HTTP/2.0\r\n",
        b"GET  / HTTP/1.1\r\n",
        b"GET / HTTP/1.1\n",
        b"\r\nGET / HTTP/1.1\r\n",
        b"GET /\x00 HTTP/1.1\r\n",
        b"GETTINGTOOLONGTOBE",
        b"GET " + b"/" * 9000,
        b"SSH-2.0-OpenSSH_9.2\r\n",
    ],
)
@given(cuts=st.lists(st.integers(0, 20_000), max_size=5))
def test_what_can_become_no_request_is_refused_at_once(said, cuts):
    assert give(said, cuts)[0] == "not an HTTP request"


@given(st.binary(max_size=64), st.lists(st.integers(0, 64), max_size=5))
def test_what_is_refused_is_refused_in_any_pieces(data, cuts):
    assert give(data, cuts)[0] == give(data, [])[0]


def test_a_head_without_an_end_is_refused_at_its_limit():
    head = Head()
    assert head.add(b"GET / HTTP/1.1\r\nX: ") is None
    for _ in range((MAX_BYTES - 19) // 100):
        assert head.add(b"y" * 100) is None
    with pytest.raises(NoRequestError, match="too many bytes"):
        head.add(b"y" * 100)


def test_a_long_body_comes_through_and_the_connection_stays():
    """Nothing is read between the head and the answer's begin; everything after it."""

    async def story():
        gate = Gate(RunSecret("a secret of this test, and long enough", "r1"), run="r1")

        @web.middleware
        async def guard(request, handler):
            connection = gate.answering[request.transport]
            connection.begin_answer()
            try:
                return await handler(request)
            finally:
                connection.end_answer()

        async def count(request):
            return web.json_response([len(await request.read()), id(request.transport)])

        app = web.Application(middlewares=[guard], client_max_size=8 << 20)
        app.router.add_post("/", count)
        sock = socket.create_server(("127.0.0.1", 0))
        runner = await listening.serve(app, [listening.Place(sock, is_encrypted=False)], None, gate=gate, peers=None)
        try:
            async with ClientSession(f"http://127.0.0.1:{sock.getsockname()[1]}") as session:
                answers = []
                for size in (0, 4 << 20, len(door._buffer), 1):
                    async with session.post("/", data=io.BytesIO(b"b" * size)) as answer:
                        answers.append(await answer.json())
        finally:
            await runner.cleanup()
        assert [size for size, _ in answers] == [0, 4 << 20, len(door._buffer), 1]
        assert len({transport for _, transport in answers}) == 1

    asyncio.run(story())
