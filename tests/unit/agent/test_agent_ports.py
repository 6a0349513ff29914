"""What ports and TCP count between two looks: real counters, and ones that go back or vanish."""

import socket
import time

from everstep.agent.senses.ports import NUM_ROUNDS, TCP, Ports
from everstep.linux.nics import Nic, read_tcp
from everstep.model.facts import PortSeen


def nics(**counters: int) -> dict[str, Nic]:
    return {"eth0": Nic(None, counters)}


def test_only_trouble_that_grew_is_told():
    ports = Ports()
    ports.take(0.0, nics(tx_bytes=1, rx_errors=5, rx_dropped=1, rx_pause_ctrl=0))
    assert ports.seen() == ()
    ports.take(2.0, nics(tx_bytes=9, rx_errors=5, rx_dropped=9, rx_pause_ctrl=0))
    assert ports.seen() == ()
    ports.take(4.0, nics(tx_bytes=9, rx_errors=7, rx_dropped=9, rx_pause_ctrl=40))
    assert ports.seen() == (PortSeen(nic="eth0", seconds=4.0, grown={"rx_errors": 2, "rx_pause_ctrl": 40}),)


def test_a_counter_that_goes_back_or_vanishes_is_unknown_until_those_rounds_are_over():
    ports = Ports()
    for at, value in enumerate((5, 9, 2, 3, 4, 5, 6, 7)):
        ports.take(2.0 * at, nics(rx_errors=value, symbol_error=1))
        if at == 2:
            assert ports.seen() == (PortSeen(nic="eth0", seconds=4.0, unknown=("rx_errors",)),)
    (seen,) = ports.seen()
    assert (seen.grown, seen.unknown) == ({"rx_errors": NUM_ROUNDS}, ())
    ports.take(20.0, {})
    assert ports.seen()[0].unknown == ("rx_errors", "symbol_error")


def test_tcp_that_sends_again_is_counted_by_the_kernel():
    """A real connection to an address that never answers."""
    before = read_tcp()
    assert before.keys() == {"segments", "retransmits"}
    ports = Ports()
    until = time.monotonic() + 60
    with socket.socket() as deaf, socket.socket() as knocking:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(0)
        for filler in (full := [socket.socket() for _ in range(3)]):  # the queue is full, so SYNs are dropped
            filler.setblocking(False)
            filler.connect_ex(deaf.getsockname())
        knocking.setblocking(False)
        knocking.connect_ex(deaf.getsockname())
        while not any(port.nic == TCP and port.grown.get("retransmits") for port in ports.look()):
            assert time.monotonic() < until
            time.sleep(0.05)
        for filler in full:
            filler.close()


def test_a_driver_that_does_not_answer_costs_what_is_known_and_nothing_else(monkeypatch):
    monkeypatch.setattr("everstep.agent.senses.ports.read_nics", lambda root: time.sleep(20) or {})
    ports, began = Ports(), time.monotonic()
    assert [ports.look() for _ in range(3)] == [(), (), ()]
    assert time.monotonic() - began < 15
