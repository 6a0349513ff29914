"""What a transfer takes when memory holds two histories, or changes under it."""

import asyncio

import pytest
from transport_node import RUN, TOKEN, Node, content, new_arena, read, send

from everstep.checkpoint import arena
from everstep.checkpoint.transport import fetch, frames
from everstep.checkpoint.transport.incoming import Incoming

PIECE_BYTES = frames.PIECE_BYTES


def write_sealed(fd: int, step: int, data: bytes, generation: int = 0) -> tuple[arena.Arena, arena.Snapshot]:
    writer = arena.Arena(fd)
    buffer = writer.begin(step, generation)
    assert buffer is not None
    writer.buffer(buffer)[: len(data)] = data
    snapshot = writer.publish(len(data), 64, 1)
    assert writer.seal(snapshot)
    return writer, snapshot


def test_of_a_step_that_is_in_both_places_the_newest_generation_is_fetched() -> None:
    async def run() -> None:
        async with Node() as holder, Node() as owner:
            holder.own[0], owner.own[0] = new_arena(100_000), new_arena(100_000)
            ours, _ = write_sealed(holder.own[0], 5, b"V" * 50_000, generation=0)
            theirs, newer = write_sealed(owner.own[0], 5, b"N" * 50_000, generation=1)
            await send(holder.endpoint, owner.own[0], newer)
            fd = await fetch(holder.endpoint, TOKEN, run=RUN, rank=0, step=5, make_arena=new_arena)
            holder.own[7] = fd  # closed with the node
            assert read(fd, 5) == b"N" * 50_000
            ours.close()
            theirs.close()

    asyncio.run(run())


def test_pieces_that_were_meant_to_be_there_cost_no_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica's memory was to give most of the snapshot, and is overwritten meanwhile: more rounds than attempts."""

    async def run() -> None:
        size = 5 * PIECE_BYTES
        async with Node() as holder, Node() as owner:
            holder.own[1], owner.own[0] = new_arena(size, rank=1), new_arena(size)
            replica, same = write_sealed(holder.own[1], 5, content(size, 5))
            ours, snapshot = write_sealed(owner.own[0], 5, content(size, 5))
            table = Incoming._table

            def overwritten(incoming: Incoming) -> bytes:
                offered = table(incoming)
                replica.buffer(same.buffer)[:size] = bytes(size)
                return offered

            monkeypatch.setattr(Incoming, "_table", overwritten)
            pushed = await send(holder.endpoint, owner.own[0], snapshot)
            assert pushed.bytes_sent == size
            replica.close()
            ours.close()

    monkeypatch.setattr(frames, "MOST_AGAIN", 1)
    asyncio.run(run())
