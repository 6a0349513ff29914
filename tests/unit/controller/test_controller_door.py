"""Connections to the controller's port from other machines, of which no kernel here knows whose they are."""

import asyncio
import contextlib

from everstep.controller.peers.door import Doors
from everstep.controller.peers.gate import Gate
from everstep.wire.credentials import RunSecret
from everstep.wire.strangers.guests import Guests

HERE = ("10.0.0.1", 29500)


class Transport(asyncio.Transport):
    def __init__(self, address):
        super().__init__({"peername": (address, 4711), "sockname": HERE})
        self.is_cut = False

    def abort(self):
        self.is_cut = True

    def is_closing(self):
        return self.is_cut


def test_a_crowd_on_the_network_takes_no_place_of_a_host_that_comes_back():
    async def story():
        gate = Gate(RunSecret("a secret of this test, and long enough", "r1"), run="r1")
        doors = Doors(gate, None, make_http=None, guests=Guests(64), idle_s=30.0)

        def come(address):
            transport = Transport(address)
            doors().connection_made(transport)
            return transport

        crowd = [come("203.0.113.9") for _ in range(200)]
        hosts = [come(f"10.0.0.{number}") for number in range(2, 22)]
        assert sum(not each.is_cut for each in crowd) <= 8
        assert not any(each.is_cut for each in hosts)
        doors.owners.close()

    asyncio.run(story())


class Pieces(asyncio.Protocol):
    """In aiohttp's place; begins its answer once it has a head."""

    def __init__(self):
        self.sizes = []
        self.door = None

    def data_received(self, data):
        self.sizes.append(len(data))
        asyncio.get_running_loop().call_soon(self.door.begin_answer)


def test_what_a_stranger_sends_is_read_in_small_pieces():
    """Each is kept for as long as somebody looks at it, or its error; asyncio alone reads 256 KiB at once."""

    async def story():
        gate = Gate(RunSecret("a secret of this test, and long enough", "r1"), run="r1")
        made = Pieces()
        doors = Doors(gate, None, make_http=lambda: made, guests=Guests(64), idle_s=30.0)

        def door():
            made.door = doors()
            return made.door

        server = await asyncio.get_running_loop().create_server(door, "127.0.0.1", 0)
        async with server:
            _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            head = b"POST / HTTP/1.1\r\n\r\n"
            writer.write(head + b"G" * (4 << 20))
            await writer.drain()
            async with asyncio.timeout(60):
                while sum(made.sizes) < len(head) + (4 << 20):
                    await asyncio.sleep(0.001)
            writer.close()
        doors.owners.close()
        return made.sizes

    assert max(asyncio.run(story())) <= 16 << 10


def test_nothing_is_read_behind_a_head_that_aiohttp_does_not_answer():
    async def story():
        gate = Gate(RunSecret("a secret of this test, and long enough", "r1"), run="r1")
        made = Pieces()
        doors = Doors(gate, None, make_http=lambda: made, guests=Guests(64), idle_s=0.3)

        class Silent:
            def begin_answer(self):
                pass

        made.door = Silent()
        server = await asyncio.get_running_loop().create_server(doors, "127.0.0.1", 0)
        async with server:
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            writer.write(b"GET / HTTP/1.1\r\nHost : a\r\n\r\n")
            await writer.drain()
            while not made.sizes:
                await asyncio.sleep(0.001)
            writer.write(b"G" * (1 << 20))
            with contextlib.suppress(ConnectionError):
                await reader.read()  # its time is over
            writer.close()
        doors.owners.close()
        return made.sizes

    assert len(asyncio.run(story())) == 1
