"""The server's end of WebSocket: whatever way the bytes are cut, the messages are the same, and garbage is refused."""

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everstep.errors import WireError
from everstep.wire.websocket import BINARY, CLOSE, PING, TEXT, BrokenError, Incoming, frame, parse_request, switching

MOST = 70_000


def sent(payload: bytes, opcode: int = BINARY, *, is_last: bool = True, mask: bytes = b"\x01\x80\x7f\xff") -> bytes:
    """As a client says it."""
    size = len(payload)
    head = bytes([(128 if is_last else 0) | opcode])
    if size < 126:
        head += bytes([128 | size])
    elif size < 1 << 16:
        head += bytes([254]) + size.to_bytes(2, "big")
    else:
        head += bytes([255]) + size.to_bytes(8, "big")
    return head + mask + bytes(byte ^ mask[i % 4] for i, byte in enumerate(payload))


def read(incoming: Incoming, *pieces: bytes) -> list[tuple[int, bytes]]:
    return [(opcode, bytes(data)) for piece in pieces for opcode, data in incoming.feed(piece)]


@settings(max_examples=60, deadline=None)
@given(
    payloads=st.lists(st.binary(max_size=300), max_size=6),
    cuts=st.lists(st.integers(0, 2000), max_size=8),
    data=st.data(),
)
def test_messages_are_the_same_however_they_arrive(payloads, cuts, data):
    stream = b"".join(sent(payload, mask=data.draw(st.binary(min_size=4, max_size=4))) for payload in payloads)
    ends = sorted({min(cut, len(stream)) for cut in cuts} | {len(stream)})
    pieces = [stream[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]
    assert read(Incoming(MOST), *pieces) == [(BINARY, payload) for payload in payloads]


@pytest.mark.parametrize("size", [0, 125, 126, 65_535, 65_536, MOST])
def test_every_form_of_length(size):
    payload = os.urandom(size)
    stream = sent(payload) + sent(b"next")
    assert read(Incoming(MOST), stream) == [(BINARY, payload), (BINARY, b"next")]
    one_by_one = Incoming(MOST)
    pieces = [stream[at : at + 1021] for at in range(0, len(stream), 1021)]
    assert read(one_by_one, *pieces) == [(BINARY, payload), (BINARY, b"next")]


def test_parts_are_put_together_and_control_comes_in_between():
    incoming = Incoming(MOST)
    stream = sent(b"a", TEXT, is_last=False) + sent(b"?", PING) + sent(b"b", 0, is_last=False) + sent(b"c", 0)
    assert read(incoming, stream) == [(PING, b"?"), (TEXT, b"abc")]
    assert read(incoming, sent(b"\x03\xe8", CLOSE)) == [(CLOSE, b"\x03\xe8")]


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (sent(b"x" * (MOST + 1))[:14], 1009),
        (sent(b"x" * MOST, is_last=False) + sent(b"x", 0), 1009),
        (bytes([0x82, 0x01]) + b"x", 1002),  # no mask
        (bytes([0xC2, 0x80]) + bytes(4), 1002),  # compressed
        (sent(b"", 0), 1002),  # goes on with nothing
        (sent(b"", BINARY, is_last=False) + sent(b"", BINARY), 1002),
        (sent(b"", PING, is_last=False), 1002),
        (sent(b"x" * 126, PING), 1002),
        (sent(b"", 3), 1002),
    ],
)
def test_what_is_no_message_is_refused_before_it_is_read(data, code):
    with pytest.raises(BrokenError) as broken:
        read(Incoming(MOST), data)
    assert broken.value.code == code


@settings(max_examples=100, deadline=None)
@given(data=st.binary(max_size=400))
def test_garbage_is_a_broken_link_and_nothing_else(data):
    try:
        for _, payload in Incoming(100).feed(data):
            assert len(payload) <= 100
    except BrokenError:
        pass


def test_a_server_sends_whole_frames_without_a_mask():
    assert frame(BINARY, b"ab") == b"\x82\x02ab"
    assert frame(BINARY, b"x" * 126)[:4] == b"\x82\x7e\x00\x7e"
    assert frame(BINARY, b"x" * 65_536)[:10] == b"\x82\x7f" + (65_536).to_bytes(8, "big")


def test_the_answer_to_the_request_is_that_of_the_standard():
    head = b"GET /link HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: keep-alive, Upgrade\r\n"
    _, headers = parse_request(head + b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==")
    assert b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n" in switching(headers)
    for missing in headers:
        if missing != "host":
            with pytest.raises(WireError):
                switching({name: value for name, value in headers.items() if name != missing})
    with pytest.raises(WireError):
        parse_request(b"GET /link HTTP/1.1\r\nno header")


def test_fragments_without_end_or_content_end_the_connection():
    empty = bytes([0x00, 0x80, 0, 0, 0, 0])
    begin = bytes([0x02, 0x80, 0, 0, 0, 0])
    incoming = Incoming(1 << 20)
    with pytest.raises(BrokenError, match="fragments"):
        incoming.feed(begin + empty * 1000)
    incoming = Incoming(1 << 20)
    final = bytes([0x80, 0x80, 0, 0, 0, 0])
    assert incoming.feed((begin + empty * 100 + final) * 3) == [(BINARY, bytearray())] * 3
