"""Whatever the network between the voters does: two controllers never act, and one does when it is whole again."""

import asyncio
import tempfile
from pathlib import Path

import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from voting_hosts import Fleet, JumpingLoop

WHOLE_S = 25.0
"""Voters that were away are voters again, those that are gone are none."""

SIDES = st.sets(st.integers(0, 5), min_size=1, max_size=4)
SPLITS = st.tuples(SIDES, st.none() | SIDES, st.booleans(), st.floats(0.5, 16), st.floats(0.2, 12))
"""Who is cut off, from whom (None: from all others), in one direction only, for how long, and how long nothing is cut
afterwards."""


def tell(story, rates, seed=1, slow=0.0):
    loop = JumpingLoop()

    async def whole(folder, monkeypatch):
        fleet = Fleet(Path(folder), rates, seed, monkeypatch)
        try:
            await asyncio.sleep(8)
            assert [each.number for each in fleet.leaders] == [0]
            assert len(fleet.machines[0].copying.roster.voters) == len(rates)
            fleet.slow = slow
            await story(fleet)
        finally:
            await fleet.close()

    try:
        with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as monkeypatch:
            loop.run_until_complete(whole(folder, monkeypatch))
    finally:
        loop.close()


def acting(fleet):
    return [each.number for each in fleet.leaders]


@pytest.mark.parametrize("side", [{1, 2, 3}, {0, 1, 2}], ids=["away", "with"])
def test_of_halves_the_one_with_the_controller_goes_on_and_the_other_elects_nobody(side):
    async def story(fleet):
        fleet.split(side)
        await asyncio.sleep(20)
        assert acting(fleet) == [0]
        assert not fleet.epochs
        fleet.heal()
        await asyncio.sleep(WHOLE_S)
        assert acting(fleet) == [0]
        assert len(fleet.machines[0].copying.roster.voters) == 6

    tell(story, [1.0] * 6)


def test_a_controller_with_a_minority_decides_nothing_says_why_and_ends_when_it_hears_of_the_successor():
    async def story(fleet):
        fleet.split({0, 1})
        await asyncio.sleep(8)
        (successor,) = acting(fleet)
        assert successor in (2, 3, 4, 5)
        assert "they may have another controller" in fleet.machines[0].said[0]
        acted = fleet.machines[0].acted_at
        fleet.heal()
        await asyncio.sleep(WHOLE_S)
        assert acting(fleet) == [successor]
        assert fleet.machines[0].acted_at == acted
        assert "another host has the controller" in fleet.machines[0].has_ended
        assert list(fleet.epochs) == [2]

    tell(story, [1.0] * 6)


def test_a_controller_with_a_majority_goes_on_and_takes_the_others_back():
    async def story(fleet):
        fleet.split({4, 5})
        await asyncio.sleep(20)
        assert acting(fleet) == [0]
        assert len(fleet.machines[0].copying.roster.voters) == 4
        fleet.heal()
        await asyncio.sleep(WHOLE_S)
        assert acting(fleet) == [0]
        assert len(fleet.machines[0].copying.roster.voters) == 6
        assert not fleet.epochs

    tell(story, [1.0] * 6)


@pytest.mark.parametrize("side", [{0}, {1, 2, 3, 4, 5}], ids=["not heard", "hears nothing"])
def test_a_controller_that_is_cut_off_one_way_has_one_successor(side):
    async def story(fleet):
        fleet.split(side, one_way=True)
        await asyncio.sleep(16)
        assert len(fleet.leaders) == 1
        fleet.heal()
        await asyncio.sleep(WHOLE_S)
        assert len(fleet.leaders) == 1

    tell(story, [1.0] * 6)


def test_a_host_that_alone_does_not_hear_the_controller_disturbs_nobody():
    async def story(fleet):
        fleet.split({0}, {1})
        await asyncio.sleep(20)
        assert acting(fleet) == [0]
        assert not fleet.epochs

    tell(story, [1.0] * 5)


@pytest.mark.parametrize("tenths", range(26, 50, 2))
def test_a_cut_that_ends_while_hosts_vote_leaves_one_controller(tenths):
    async def story(fleet):
        fleet.split({0})
        await asyncio.sleep(tenths / 10)
        fleet.heal()
        await asyncio.sleep(WHOLE_S)
        assert len(fleet.leaders) == 1

    tell(story, [1.0] * 5)


@pytest.mark.slow
@settings(deadline=None, max_examples=examples(300) // 3)
@given(
    num=st.integers(3, 6),
    splits=st.lists(SPLITS, min_size=1, max_size=4),
    rates=st.lists(st.floats(0.99, 1.01), min_size=6, max_size=6),
    slow=st.sampled_from([0.0, 0.02, 0.2]),
    seed=st.integers(0, 1 << 16),
)
def test_whatever_is_cut_two_never_act_and_one_does_when_nothing_is(num, splits, rates, slow, seed):
    async def story(fleet):
        for side, others, one_way, seconds, whole_s in splits:
            others = others if others is None else {each % num for each in others}
            fleet.split({each % num for each in side}, others, one_way=one_way)
            await asyncio.sleep(seconds)
            fleet.heal()
            await asyncio.sleep(whole_s)
        fleet.slow = 0.0
        await asyncio.sleep(2 * WHOLE_S)
        assert len(fleet.leaders) == 1 or not fleet.may_elect

    tell(story, rates[:num], seed, slow)
