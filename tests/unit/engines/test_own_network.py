"""A node in a network namespace of its own sees its own interfaces, not the machine's."""

import fcntl
import socket
import struct
import threading
import time
from pathlib import Path

import pytest

from everstep.engines.network import Namespaces, NetworkError
from everstep.engines.network.namespaces import _BRIDGE, enter
from everstep.probes.node.interfaces import Interface, read_interfaces
from everstep.probes.node.own_network import own_sys


def test_whoever_lives_where_sys_was_mounted_reads_that():
    assert own_sys(Path("/sys")) == Path("/sys")
    assert own_sys(Path("/elsewhere/sys")) == Path("/elsewhere/sys"), "somebody has said where"


def link_once(folder: Path, *, is_up: bool) -> Interface:
    """The state of a link follows its carrier some milliseconds later."""
    deadline = time.monotonic() + 60
    while True:
        (link,) = [one for one in read_interfaces(folder) if one.name == "eth0"]
        if link.is_up is is_up or time.monotonic() > deadline:
            return link
        time.sleep(0.01)


def test_a_flap_of_its_own_link_is_seen_inside_of_the_namespace():
    try:
        network = Namespaces()
    except NetworkError as error:
        pytest.skip(str(error))
    seen: list[tuple[bool | None, int | None]] = []

    def look() -> None:
        enter(plug.namespace_fd)
        folder = own_sys(Path("/sys"))
        for is_cut in (None, True, False):
            if is_cut is not None:
                network.cut("n0", is_cut=is_cut)
            link = link_once(folder, is_up=not is_cut)
            seen.append((link.is_up, link.carrier_changes))

    plug = network.plug("n0")
    try:
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
        (_, before), (is_up, _), (_, after) = seen
        assert is_up is False
        assert after == before + 2
    finally:
        network.unplug("n0")
        network.close()


def hardware_address() -> bytes:
    with socket.socket() as sock:
        return fcntl.ioctl(sock, 0x8927, struct.pack("16s16x", _BRIDGE.encode()))[18:24]  # SIOCGIFHWADDR


def test_the_switch_keeps_its_address_whoever_comes_and_goes():
    try:
        network = Namespaces()
    except NetworkError as error:
        pytest.skip(str(error))
    nodes = [f"n{number}" for number in range(6)]  # one of them has a lower address than the switch: 63 of 64
    try:
        seen = [network.call(hardware_address)]
        for change in (network.plug, network.unplug):
            for node in nodes:
                change(node)
                seen.append(network.call(hardware_address))
        assert set(seen) == {seen[0]}, "what a node has learnt of the switch would be wrong"
    finally:
        network.close()
