"""Who is at the other end: a user of this machine, an address, or the network of an IPv6 address."""

import os
import socket

import pytest

from everstep.wire.strangers.guests import Guests
from everstep.wire.strangers.owner import Owners


@pytest.fixture
def owners():
    made = Owners()
    yield made
    made.close()


@pytest.mark.parametrize("here", ["127.0.0.1", "::1"])
def test_on_this_machine_it_is_a_user(owners, here):
    family = socket.AF_INET6 if ":" in here else socket.AF_INET
    try:
        listener = socket.create_server((here, 0), family=family)
    except OSError:
        pytest.skip(f"this machine has no {here}")
    with listener, socket.create_connection(listener.getsockname()[:2]):
        sock, peer = listener.accept()
        with sock:
            assert owners.who(peer, sock.getsockname()) == os.geteuid()


@pytest.mark.parametrize(
    ("peer", "who"),
    [
        ("10.0.0.7", "10.0.0.7"),
        ("::ffff:10.0.0.7", "10.0.0.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", None),
        ("x", None),
    ],
)
def test_from_elsewhere_it_is_an_address_and_of_ipv6_a_network(owners, peer, who):
    assert owners.who((peer, 4711, 0, 0), ("10.0.0.1" if "." in peer else "2001:db8::1", 80)) == who


@pytest.mark.parametrize("peer", [None, (), "10.0.0.7", (7,)])
def test_what_is_no_address_is_nobody(owners, peer):
    assert owners.who(peer, ("10.0.0.1", 80)) is None


def test_all_addresses_of_one_network_share_one_place_among_the_guests(owners):
    class Guest:
        is_busy = False
        is_gone = False

        def abort(self):
            self.is_gone = True

    guests, here = Guests(64), ("2001:db8::1", 80)
    crowd = [Guest() for _ in range(500)]
    for number, guest in enumerate(crowd):
        guests.admit(guest, owners.who((f"2001:db8:9::{number:x}", 4711), here))
    assert sum(not guest.is_gone for guest in crowd) == 8
