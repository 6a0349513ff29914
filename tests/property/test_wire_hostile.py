"""Decoders and the gate against anything: bytes become a message or a WireError, headers a peer or nobody."""

import random
import socket

import msgspec
import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from everstep.controller.peers.budget import MAX_UNITS, UNITS_PER_S, Budget
from everstep.errors import WireError
from everstep.model import events
from everstep.model.names import MachineName
from everstep.wire import allowed, codec, local
from everstep.wire.codec import decode_from_peer, encode
from everstep.wire.credentials import Credentials, RunSecret, is_same, parse_knock
from everstep.wire.messages import Beat, Hello, Report
from everstep.wire.strangers.rejections import MAX_WHY_CHARS, Rejections

SECRET = RunSecret("secret of a test, and long enough", "r1")
REPORTS = [
    encode(Report(source_seq=3, event=event))
    for event in (
        events.NodeJoined(at=1.0, node="n0", host="h", pid=1, endpoint="127.0.0.1:1"),
        events.WorkersStopped(at=1.0, node="n0", generation=2),
        events.NodeAlerted(at=1.0, node="n0", alerts=()),
    )
]
NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", fullmatch=True)


@settings(max_examples=examples(300))
@given(st.data())
def test_a_mutated_report_is_a_report_that_may_be_made_or_is_refused(data):
    whole = bytearray(data.draw(st.sampled_from(REPORTS)))
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(whole)))
        whole[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=6))
    try:
        message = decode_from_peer(bytes(whole))
    except WireError:
        return
    assert isinstance(message, Report | Hello | Beat)
    if isinstance(message, Report):
        objection = allowed.objection("agent", "n0", message.event)
        assert objection or getattr(message.event, "node", "n0") == "n0"


@given(st.recursive(st.none() | st.integers() | st.text(max_size=5), lambda inner: st.lists(inner, max_size=3)))
def test_any_object_is_refused_or_decoded(value):
    try:
        data = msgspec.msgpack.encode(value)
    except OverflowError:
        return
    for decode in (codec.decode_from_peer, codec.decode_from_controller):
        with pytest.raises(WireError):
            decode(data)


def test_deep_nesting_is_refused_and_ends_nothing():
    for depth in (10, 1_000, 1_000_000):
        with pytest.raises(WireError):
            decode_from_peer(b"\x91" * depth)
        frame = b"[" * depth
        reader = local.FrameReader()
        reader.feed(len(frame).to_bytes(4, "little") + frame)
        with pytest.raises(local.FrameError):
            reader.next()


@given(st.integers(0, 2**32 - 1), st.binary(max_size=40))
def test_a_frame_that_says_it_is_long_costs_nothing_until_it_comes(length, body):
    reader = local.FrameReader()
    reader.feed(length.to_bytes(4, "little") + body)
    try:
        assert reader.next() is not None or length > len(body)
        assert reader.wanted <= local.MAX_FRAME_BYTES + 4
    except local.FrameError:
        assert length > local.MAX_FRAME_BYTES or length <= len(body)


@given(st.binary(max_size=300), st.integers(1, 7))
def test_frames_over_a_real_socket_are_frames_or_a_frame_error(data, size):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(data)
        ours.close()
        reader = local.FrameReader()
        try:
            while True:
                received, fds = local.receive(theirs, min(size, reader.wanted) or 1)
                if not received:
                    return
                reader.feed(received, fds)
                while (frame := reader.next()) is not None:
                    assert isinstance(frame[0], dict)
        except local.FrameError:
            return


@given(st.text(max_size=300))
def test_any_header_is_a_claim_or_nobody(header):
    claim = parse_knock(header)
    assert claim is None or not is_same(header, SECRET.credentials(*claim[:2], machine=claim[2]).knock)
    assert not is_same(header, f"Bearer {SECRET.api_token('act')}")


@given(NAMES, st.sampled_from(["agent", "launcher"]))
def test_a_knock_is_its_owners_alone(name, role):
    mine = SECRET.credentials(role, name, machine=MachineName("gpu-1"))
    assert parse_knock(mine.knock) == (role, name, "gpu-1")
    others = [
        SECRET.credentials(role, name),
        SECRET.credentials(role, name, machine=MachineName("gpu-2")),
        SECRET.credentials("launcher" if role == "agent" else "agent", name),
        SECRET.credentials(role, f"{name}x"),
        RunSecret("secret of a test, and long enough", "r2").credentials(role, name),
        RunSecret("secret of a test, and long enougH", "r1").credentials(role, name),
    ]
    assert all(mine.link_key != other.link_key for other in others)
    assert mine.link_key not in mine.knock
    assert mine.link_key not in repr(mine)


@given(NAMES, st.text(max_size=20), st.text(max_size=20), st.text(max_size=20))
def test_a_proof_is_of_one_connection(name, challenge, nonce, other):
    mine = SECRET.credentials("agent", name)
    proof = mine.proof("hello", challenge, nonce)
    assert proof == mine.proof("hello", challenge, nonce)
    assert proof != mine.proof("welcome", challenge, nonce), "what the controller says is no peer's proof"
    assert (proof == mine.proof("hello", other, nonce)) == (other == challenge)
    assert (proof == mine.proof("hello", challenge, other)) == (other == nonce)
    tapped = Credentials(run="r1", role="agent", name=name, link_key=mine.link_key, fingerprint="ab")
    assert proof != tapped.proof("hello", challenge, nonce), "made over another certificate"


@given(st.lists(st.floats(0, 5), max_size=30), st.lists(st.floats(0, 2000), max_size=30))
def test_over_any_time_no_more_is_read_than_the_budget_has(pauses, spent):
    now, budget, total, waited = 0.0, Budget(0.0), 0.0, 0.0
    for pause, units in zip(pauses, spent, strict=False):
        now += pause
        wait_s = budget.spend(units, now)
        now, total, waited = now + wait_s, total + units, waited + wait_s
        assert total <= MAX_UNITS + now * UNITS_PER_S + 1e-6
    assert waited == 0 or total > MAX_UNITS


def test_a_million_rejections_are_a_few_lines(caplog):
    clock, chance = [0.0], random.Random(1)
    rejections = Rejections(lambda: clock[0])
    for _ in range(100_000):
        clock[0] += 0.001
        rejections.note("garbage", "\x1b[2J" + "x" * chance.randrange(1000))
    assert rejections.counts["garbage"] == 100_000
    assert len(caplog.records) == 2
    assert "more since the last such line" in caplog.records[1].getMessage()
    assert all("\x1b" not in each.getMessage() for each in caplog.records)
    assert all(len(each.getMessage()) < MAX_WHY_CHARS + 200 for each in caplog.records)
