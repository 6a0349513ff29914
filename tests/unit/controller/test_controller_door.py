"""Connections to the controller's port from other machines, of which no kernel here knows whose they are."""

import asyncio

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
