"""Whether the other machine is there, as its kernel says: also when the process behind it does nothing at all."""

import asyncio
import os
import signal
import socket
import subprocess
import sys

import pytest

from everstep.engines.network import Namespaces, NetworkError
from everstep.engines.network.namespaces import enter
from everstep.wire import contact as contact_module
from everstep.wire.contact import Contact

LISTEN = """
import socket, sys
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
link, _ = server.accept()
while link.recv(100): pass
"""
DEADLINE_S = 60.0


async def until(condition) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(0.02)


async def connected(contact: Contact, address: tuple[str, int]) -> socket.socket:
    sock = contact.make_socket((socket.AF_INET, socket.SOCK_STREAM, 0))
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, address)
    return sock


def test_a_stopped_process_still_acknowledges():
    async def story() -> None:
        other = subprocess.Popen([sys.executable, "-c", LISTEN], stdout=subprocess.PIPE)
        assert other.stdout is not None
        try:
            contact = Contact()
            address = ("127.0.0.1", int(other.stdout.readline()))
            with await connected(contact, address) as sock:
                os.kill(other.pid, signal.SIGSTOP)
                sock.send(b"beat")
                await until(lambda: contact.acknowledged_at() is not None)
                assert contact.is_fresh()
        finally:
            other.kill()
            other.wait()
            other.stdout.close()

    asyncio.run(story())


def test_a_connection_that_nobody_has_accepted_yet_is_contact():
    """The launcher holds the socket while one controller ends and another begins."""

    async def story() -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            contact = Contact()
            with await connected(contact, server.getsockname()):
                assert contact.is_fresh()
            assert not contact.is_fresh(), "it is closed"

    asyncio.run(story())


def test_a_refusal_is_an_answer_for_a_moment(monkeypatch):
    now = [10.0]
    contact = Contact(lambda: now[0])
    assert not contact.is_fresh()
    contact.note_refusal()
    assert contact.is_fresh()
    now[0] += contact_module.FRESH_S + 0.1
    assert not contact.is_fresh()


def test_over_a_cut_link_nothing_is_acknowledged_and_after_it_everything():
    try:
        network = Namespaces()
    except NetworkError as error:
        pytest.skip(str(error))
    pid = 0
    try:
        with network.listen() as server:
            plug = network.plug("n0")
            assert plug.namespace_fd is not None
            to_child, from_child = socket.socketpair()
            pid = os.fork()
            if pid == 0:
                _report_contact(plug.namespace_fd, server.getsockname(), from_child)
            os.close(plug.namespace_fd)
            from_child.close()
            with to_child:
                to_child.settimeout(DEADLINE_S)
                assert to_child.recv(1) == b"+"
                network.cut("n0", is_cut=True)
                while to_child.recv(1) == b"+":
                    pass
                network.cut("n0", is_cut=False)
                while to_child.recv(1) == b"-":
                    pass
    finally:
        if pid:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        network.close()


def _report_contact(namespace: int, address: tuple[str, int], out: socket.socket) -> None:
    """In a child: says something every 50 ms, and whether it arrived. Never returns."""
    try:
        enter(namespace)
        contact = Contact()
        sock = contact.make_socket((socket.AF_INET, socket.SOCK_STREAM, 0))
        sock.connect(address)
        while True:
            sock.send(b"beat")
            signal.sigtimedwait([], 0.05)
            out.send(b"+" if contact.acknowledged_at() is not None else b"-")
    finally:
        os._exit(1)
