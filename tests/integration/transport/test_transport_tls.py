"""Snapshots between hosts: encrypted, and only with who has the run's certificate."""

import asyncio
import contextlib
import os
from pathlib import Path

import pytest
from transport_node import BadLine, Node, content, new_arena, read, send, write

from everstep.checkpoint import arena
from everstep.checkpoint.transport import Tls, TransferError, fetch
from everstep.checkpoint.transport.frames import PIECE_BYTES
from everstep.launcher.rundir.keys import Keys
from everstep.wire.credentials import CERTIFICATE_NAME, KEY_NAME

SIZE = PIECE_BYTES + 12_345


def tls(folder: Path) -> Tls:
    folder.mkdir()
    Keys(folder, "r1").certify()
    return Tls((folder / CERTIFICATE_NAME).read_text(), (folder / KEY_NAME).read_text())


def test_a_snapshot_goes_there_and_back_and_nobody_reads_it_on_the_way(tmp_path):
    fd = new_arena(SIZE)
    snapshot = write(fd, 7, content(SIZE, 7))
    ours, theirs = tls(tmp_path / "ours"), tls(tmp_path / "theirs")
    seen = bytearray()

    class Eavesdropper(BadLine):
        async def _carry(self, way, source, target):
            with contextlib.suppress(OSError):
                while data := await source.read(1 << 16):
                    seen.extend(data)
                    target.write(data)
                    await target.drain()

    async def story():
        async with Node(tls=ours) as node, Eavesdropper(node.endpoint) as line:
            pushed = await send(node.endpoint, fd, snapshot, tls=ours)
            assert pushed.bytes_sent == SIZE
            got = await fetch(
                node.endpoint, "a token of this test", run="r1", rank=0, step=7, make_arena=new_arena, tls=ours
            )
            assert read(got, 7) == content(SIZE, 7)
            os.close(got)
            with pytest.raises(TransferError, match="another certificate"):
                await send(node.endpoint, fd, snapshot, tls=theirs)
            with pytest.raises(TransferError):  # the endpoint is another one than it says: the proofs do not fit
                await send(f"127.0.0.1:{line.port}", fd, write(fd, 8, content(SIZE, 8)), tls=ours)
            assert node.shelf.held()[0].steps == (7,)

    asyncio.run(story())
    assert len(seen) > 200
    assert b"EVTRANS" not in seen
    assert arena.inspect(fd).why == ""
    os.close(fd)
