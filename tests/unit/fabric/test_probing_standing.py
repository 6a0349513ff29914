"""What one node can say of a link, second by second, and which packets count at all."""

import msgspec
import pytest

from everstep.fabric.probing.sealed import SIZE, Heard, Packet, key_of, name_of, seal, unseal
from everstep.fabric.probing.standing import Standing
from everstep.model.facts import LinkState

GAP_S = 0.3
KEY = key_of("secret", "run", 3)
PACKET = Packet(False, name_of("n0"), name_of("n1"), b"session.", 7)


class Watched:
    """A link that answers whatever `answers` lets through."""

    def __init__(self) -> None:
        self.now, self.link = 100.0, Standing("n1", 4)
        self.states: list[LinkState] = []
        self.heard_at: float | None = None

    def run(self, seconds: float, answers=lambda number, port: True):
        for _ in range(round(seconds / GAP_S)):
            self.now += GAP_S
            number, port = self.link.send(self.now)
            if answers(number, port):
                self.link.answer(number)
            seen = self.link.look(self.now, self.heard_at)
            self.states.append(seen.state)
        return seen


def nothing(number: int, port: int) -> bool:
    return False


def test_what_never_answered_is_unknown_and_not_dead():
    assert Watched().run(60.0, nothing).state is LinkState.UNKNOWN


def test_a_cut_is_seen_in_two_or_three_seconds_and_dated():
    watched = Watched()
    assert watched.run(20.0).state is LinkState.GOOD
    watched.run(1.8, nothing)
    assert LinkState.DEAD not in watched.states
    seen = watched.run(1.2, nothing)
    assert (seen.state, seen.dead_ports) == (LinkState.DEAD, 4)
    assert watched.run(27.0, nothing).for_s == pytest.approx(30.0 - GAP_S, abs=0.01)


def test_one_answer_is_no_recovery_and_some_in_a_row_are():
    watched = Watched()
    watched.run(10.0)
    watched.run(6.0, nothing)
    assert watched.run(GAP_S).state is LinkState.DEAD
    watched.run(GAP_S, nothing)
    assert watched.run(6 * GAP_S).state is LinkState.DEAD
    assert watched.run(15.0).state is LinkState.GOOD
    assert LinkState.PARTIAL not in watched.states


def test_echoes_that_come_late_after_a_busy_second_are_no_losses():
    """The other agent did not run: everything is answered at once when it does."""
    watched = Watched()
    watched.run(10.0)
    asked: list[int] = []
    watched.run(1.8, lambda number, port: asked.append(number))
    for number in asked:
        watched.link.answer(number)
    assert watched.run(3.0).state is LinkState.GOOD
    assert set(watched.states) == {LinkState.GOOD}


def test_a_source_port_that_is_swallowed_is_told_apart_from_loss_by_chance():
    watched = Watched()
    watched.run(10.0)
    seen = watched.run(12.0, lambda number, port: port != 2)
    assert (seen.state, seen.dead_ports, seen.ports) == (LinkState.PARTIAL, 1, 4)
    lossy = Watched()
    lossy.run(10.0)
    assert lossy.run(10.0, lambda number, port: number % 7 != 0).state is LinkState.LOSSY


def test_what_is_heard_is_said_beside():
    watched = Watched()
    watched.run(10.0)
    watched.heard_at = watched.now + 3.0
    assert watched.run(3.0, nothing).hears
    assert not watched.run(3.0, nothing).hears


def test_an_answer_counts_once_and_only_to_what_was_sent():
    link = Standing("n1", 4)
    for number in (0, -1, 5):
        link.answer(number)
    link.send(1.0)
    for number in (1, 1, 2, 1 << 60):
        link.answer(number)
    seen = link.look(1.1, None)
    assert (seen.sent, seen.lost) == (1, 0)


def test_a_packet_is_of_this_run_and_generation_and_whole():
    data = seal(KEY, PACKET)
    assert len(data) == SIZE
    assert unseal(KEY, data) == PACKET
    others = (key_of("secret", "run", 4), key_of("secret", "other", 3), key_of("guess", "run", 3))
    assert [unseal(key, data) for key in others] == [None] * 3
    for place in range(SIZE):
        assert unseal(KEY, data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]) is None
    assert [unseal(KEY, each) for each in (b"", data[:-1], data + b"x", bytes(SIZE))] == [None] * 4


def test_what_was_heard_before_or_is_of_another_session_is_not_heard():
    heard = Heard(lambda: 5.0)
    assert heard.at is None
    assert heard.take(PACKET)
    assert heard.at == 5.0
    again = msgspec.structs.replace(PACKET, number=8)
    assert [heard.take(each) for each in (PACKET, msgspec.structs.replace(PACKET, number=6), again)] == [0, 0, 1]
    assert not heard.take(msgspec.structs.replace(PACKET, session=b"another.", number=99))
