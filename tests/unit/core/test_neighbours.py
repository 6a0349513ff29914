"""Who watches whose link: both of a pair, at most eight, and nobody on one machine."""

import pytest

from everstep.core.run import neighbours
from everstep.core.state.frozenmap import FrozenMap
from everstep.core.state.policy import Policy
from everstep.core.state.schema import Member, Role, State
from everstep.model.spec import RunSpec


def state(num: int, *, on_hosts: bool = True, address=lambda number: f"10.0.0.{number}:7000") -> State:
    members = {
        f"n{number}": Member(
            node=f"n{number}", host=f"h{number}", pid=1, role=Role.ACTIVE, slot=number, endpoint=address(number)
        )
        for number in range(num)
    }
    spec = RunSpec(program="train.py", num_slots=num, on_hosts=on_hosts)
    return State(run="r1", spec=spec, slots=tuple(members), members=FrozenMap(members))


@pytest.mark.parametrize("num", [2, 3, 9, 10, 11, 17, 64])
def test_both_of_a_pair_watch_it_and_nobody_more_than_eight(num):
    found = neighbours.of_all(state(num), Policy())
    pairs = {(one, each.node) for one, others in found.items() for each in others}
    assert len(found) == num
    assert {(other, one) for one, other in pairs} == pairs
    assert all(one != other for one, other in pairs)
    assert all(min(num - 1, 6) <= len(others) <= neighbours.MOST for others in found.values())
    assert all((f"n{number}", f"n{(number + 1) % num}") in pairs for number in range(num))


def test_nobody_watches_on_one_machine_or_where_it_is_switched_off():
    assert neighbours.of_all(state(3, on_hosts=False), Policy()) == {}
    assert neighbours.of_all(state(3), Policy(watch_links=False)) == {}
    together = neighbours.of_all(state(3, address=lambda number: f"127.0.0.1:{7000 + number}"), Policy())
    assert set(together.values()) == {()}
    assert neighbours.of_all(state(3, address=lambda number: ""), Policy()) == {}
