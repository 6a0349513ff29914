"""The agent's end of a link to a rank: frames with descriptors, garbage, slow readers."""

import asyncio
import os
import socket
import struct

from hypothesis import given
from hypothesis import strategies as st

from everstep.agent.processes.channel import Channel
from everstep.wire import local


def talk(write) -> tuple[list, list]:
    """What a channel makes of what the other side does."""
    ours, theirs = socket.socketpair()
    frames, closed = [], []

    async def story() -> None:
        channel = Channel(ours, lambda frame, fds: frames.append((frame, fds)), closed.append)
        await asyncio.to_thread(write, theirs)
        theirs.close()
        async with asyncio.timeout(60):
            while not closed:
                await asyncio.sleep(0.001)
        assert not channel.send({"too": "late"})

    asyncio.run(story())
    return frames, closed


def test_descriptors_stay_with_their_frame():
    read_end, write_end = os.pipe()

    def write(sock: socket.socket) -> None:
        local.send(sock, {"n": 1})
        local.send(sock, {"n": 2}, (write_end,))
        local.send(sock, {"n": 3})

    frames, _ = talk(write)
    assert [frame["n"] for frame, _ in frames] == [1, 2, 3]
    assert [len(fds) for _, fds in frames] == [0, 1, 0]
    (fd,) = frames[1][1]
    assert not os.get_inheritable(fd)
    for each in (fd, read_end, write_end):
        os.close(each)


@given(st.binary(min_size=1, max_size=80))
def test_garbage_closes_the_channel_and_nothing_else(data):
    frames, closed = talk(lambda sock: sock.sendall(data))
    assert len(closed) == 1
    assert all(isinstance(frame, dict) for frame, _ in frames)


def test_an_oversized_frame_is_refused():
    _, closed = talk(lambda sock: sock.sendall(struct.pack("<I", local.MAX_FRAME_BYTES + 1)))
    assert "at most" in closed[0]


def test_a_slow_reader_gets_everything():
    ours, theirs = socket.socketpair()
    big = {"x": "y" * 3_000_000}

    async def story() -> None:
        channel = Channel(ours, lambda *_: None, lambda _why: None)
        fd = os.open(os.devnull, os.O_RDONLY)
        assert channel.send(big, (fd,))
        assert channel.send({"last": True})
        os.close(fd)

        def read() -> list:
            return [local.recv(theirs), local.recv(theirs)]

        (first, fds), (second, _) = await asyncio.to_thread(read)
        assert (first, second, len(fds)) == (big, {"last": True}, 1)
        os.close(fds[0])
        channel.close()

    asyncio.run(story())
    theirs.close()
