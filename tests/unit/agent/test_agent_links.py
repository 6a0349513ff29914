"""Real sockets between two addresses of this machine: probes, echoes, strangers, a link that is cut."""

import asyncio
import socket

from free_ports import free_port

from everstep.agent.senses.links import Links, _Round
from everstep.fabric.probing.sealed import Packet, key_of, name_of, seal
from everstep.model.facts import LinkState, Neighbour

KEY = key_of("secret", "run", 0)


def two() -> tuple[_Round, _Round]:
    ends = [f"127.0.0.{number}:{free_port(f'127.0.0.{number}', socket.SOCK_DGRAM)}" for number in (2, 3)]
    one = _Round("n0", KEY, [Neighbour(node="n1", address=ends[1])], ends[0])
    return one, _Round("n1", KEY, [Neighbour(node="n0", address=ends[0])], ends[1])


async def until(condition) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.002)


def test_two_that_share_a_secret_see_each_other_and_a_stranger_is_not_heard():
    async def story():
        one, other = two()
        one.listen()
        other.listen()
        try:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
                stranger.bind(("127.0.0.4", 0))
                stranger.setblocking(False)
                at = other._answering.getsockname()
                for sender, to, key in (("n0", "n1", b"guess"), ("n9", "n1", KEY), ("n0", "n9", KEY)):
                    packet = Packet(False, name_of(sender), name_of(to), b"session.", 1 << 40)
                    stranger.sendto(seal(key, packet), at)
                stranger.sendto(b"x" * 2000, at)

                def are_good() -> bool:
                    one.turn()
                    other.turn()
                    return all(each.look()[0].state is LinkState.GOOD and each.look()[0].hears for each in (one, other))

                await until(are_good)
                try:
                    answer = stranger.recv(100)
                except BlockingIOError:
                    answer = b""
                assert answer == b""
        finally:
            one.close()
            other.close()

    asyncio.run(story())


def test_without_neighbours_no_socket_is_opened_and_a_port_that_is_taken_stops_nothing():
    async def story():
        links = Links("n0", "run", "secret", lambda event: None)
        links.begin(0, (), "127.0.0.2:7000")
        assert links._task is None
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
            taken.bind(("127.0.0.2", 0))
            peer = Neighbour(node="n1", address="127.0.0.3:7000")
            for endpoint in (f"127.0.0.2:{taken.getsockname()[1]}", "a name:7000", "", "nonsense"):
                links.begin(0, (peer,), endpoint)
                assert links._task is None
        links.close()

    asyncio.run(story())


def test_the_next_generation_watches_at_the_same_port():
    async def story():
        links = Links("n0", "run", "secret", lambda event: None)
        endpoint = f"127.0.0.2:{free_port('127.0.0.2', socket.SOCK_DGRAM)}"
        peer = Neighbour(node="n1", address="127.0.0.3:7000")
        for generation in range(4):
            links.begin(generation, (peer,), endpoint)
            assert links._task is not None
            await asyncio.sleep(0.02 * (generation % 2))  # before its task has begun, and after
        links.close()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
            free.bind(("127.0.0.2", int(endpoint.rpartition(":")[2])))

    asyncio.run(story())
