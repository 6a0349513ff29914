"""Codec and local frames: what comes out is what went in, and garbage is only ever a WireError or a FrameError."""

import os
import socket
import threading
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.errors import WireError
from everstep.model import actions, events, facts
from everstep.wire import codec, local, messages


def test_round_trip() -> None:
    report = messages.Report(source_seq=3, event=events.StopRequested(at=1.5, why="SIGINT", signal=2))
    assert codec.decode_from_peer(codec.encode(report)) == report
    command = messages.Command(id="4.0", action=actions.StopWorkers(node="n0", generation=1, grace_s=5.0, why="w"))
    assert codec.decode_from_controller(codec.encode(command)) == command


def test_text_that_is_not_unicode_is_told_as_it_can_be() -> None:
    """The name of a file, in an exception's message: it must not keep back what comes after it."""
    error = facts.ErrorReport(kind="FileNotFoundError", message="caf\udce9.txt", traceback="", at=1.0, place="")
    told = messages.Report(source_seq=3, event=exited(error))
    (received,) = [codec.decode_from_peer(codec.encode(told))]
    fit = msgspec.structs.replace(error, message="caf\\udce9.txt")
    assert received == messages.Report(source_seq=3, event=exited(fit))


def exited(error: facts.ErrorReport) -> events.WorkerExited:
    ended = facts.Exit(rank=1, at=1.0, code=1, signal=None, error=error)
    return events.WorkerExited(
        at=2.0, node="n0", generation=0, exit=ended, account=facts.RankAccount(rank=1, spawned_at=0.0)
    )


def outcome(decode: Callable[[bytes], object], data: bytes) -> object:
    """The message, or the text of the one error that is allowed."""
    try:
        return decode(data)
    except WireError as error:
        return str(error)


@given(st.binary(max_size=300))
def test_garbage_is_a_wire_error(data: bytes) -> None:
    for decode in (codec.decode_from_peer, codec.decode_from_controller):
        assert outcome(decode, data)


@given(st.data())
def test_a_damaged_message_is_decoded_or_refused(data: st.DataObject) -> None:
    whole = bytearray(codec.encode(messages.Report(source_seq=1, event=events.TimerFired(at=1.0, key="k"))))
    at = data.draw(st.integers(0, len(whole) - 1))
    whole[at] = data.draw(st.integers(0, 255))
    assert outcome(codec.decode_from_peer, bytes(whole[: data.draw(st.integers(0, len(whole)))]))


def test_oversized_is_refused_before_decoding() -> None:
    with pytest.raises(WireError, match="at most"):
        codec.decode_from_peer(b"\x00" * (codec.MAX_FROM_PEER_BYTES + 1))


def test_a_command_cannot_come_from_a_peer() -> None:
    command = messages.Command(id="1.0", action=actions.ReleaseNode(node="n0", why="w"))
    with pytest.raises(WireError):
        codec.decode_from_peer(codec.encode(command))


def test_local_frames_carry_objects_and_descriptors() -> None:
    ours, theirs = socket.socketpair()
    read_end, write_end = os.pipe()
    with ours, theirs:
        big = {"env": "x" * 300_000}
        sender = threading.Thread(target=lambda: [local.send(ours, {"a": 1}, (write_end,)), local.send(ours, big)])
        sender.start()
        frame, fds = local.recv(theirs) or ({}, [])
        assert frame == {"a": 1}
        os.write(fds[0], b"through")
        assert os.read(read_end, 10) == b"through"
        assert local.recv(theirs) == (big, [])
        sender.join()
        ours.shutdown(socket.SHUT_RDWR)
        assert local.recv(theirs) is None
    for fd in (read_end, write_end, *fds):
        os.close(fd)


def frames_of(pieces: list[bytes]) -> list[local.Frame]:
    reader, frames = local.FrameReader(), []
    for piece in pieces:
        reader.feed(piece)
        while (frame := reader.next()) is not None:
            frames.append(frame[0])
    return frames


@given(st.binary(max_size=200), st.integers(1, 9))
def test_a_frame_reader_takes_any_bytes_in_any_pieces(data: bytes, size: int) -> None:
    pieces = [data[at : at + size] for at in range(0, len(data), size)]
    try:
        frames = frames_of(pieces)
    except local.FrameError:
        return
    assert all(isinstance(frame, dict) for frame in frames)
