"""How long a node goes on while nobody hears of it: never beyond its lease, whatever happens to it."""

from everstep.agent.lease.clock import Lease
from everstep.core.state.policy import PRESETS

ENDS_S = 3.0


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def held() -> tuple[Lease, Clock]:
    clock = Clock()
    lease = Lease(ENDS_S, clock)
    lease.begin()
    return lease, clock


def test_it_is_over_when_nothing_arrived_for_so_long():
    lease, clock = held()
    clock.now += ENDS_S - 0.1
    assert not lease.is_over()
    clock.now += 0.2
    assert lease.is_over()
    assert "3.1 s" in lease.why_over


def test_what_arrived_renews_it_from_when_it_was_said():
    lease, clock = held()
    said_at = clock.now + 1.0
    clock.now += 2.5
    lease.renew(said_at)
    clock.now = said_at + ENDS_S - 0.1
    assert not lease.is_over()
    clock.now += 0.2
    assert lease.is_over()


def test_after_a_freeze_it_is_over_although_the_link_is_fine_again():
    """The kernel went on answering for the stopped process, so the link says that all is well."""
    lease, clock = held()
    clock.now += 60.0
    lease.renew(clock.now)
    assert lease.is_over()


def test_what_is_over_stays_over():
    lease, clock = held()
    clock.now += ENDS_S + 0.1
    assert lease.is_over()
    lease.begin()
    lease.renew(clock.now)
    assert lease.is_over()


def test_only_the_controllers_word_takes_it_back_and_counts_from_when_it_was_asked():
    lease, clock = held()
    clock.now += 8.0
    assert lease.is_over()
    assert lease.silent_s == 8.0
    asked_at = clock.now
    clock.now += 0.5
    lease.assure(asked_at)
    assert not lease.is_over()
    clock.now = asked_at + ENDS_S + 0.1
    assert lease.is_over()


def test_an_answer_that_came_too_late_is_none():
    lease, clock = held()
    clock.now += 8.0
    assert lease.is_over()
    asked_at = clock.now
    clock.now += ENDS_S + 0.1  # it did not run again meanwhile
    lease.assure(asked_at)
    assert lease.is_over()


def test_an_older_answer_takes_nothing_back():
    lease, clock = held()
    clock.now += 2.0
    lease.renew(clock.now)
    lease.renew(clock.now - 1.5)
    clock.now += 2.9
    assert not lease.is_over()


def test_a_node_that_was_never_welcome_runs_nothing_and_waits_for_ever():
    clock = Clock()
    lease = Lease(ENDS_S, clock)
    clock.now += 1000.0
    assert not lease.is_over()


def test_in_every_preset_ranks_have_ended_before_others_may_start():
    for policy in PRESETS.values():
        assert policy.lease_s < policy.node_silent_s
        assert Lease(policy.lease_s, Clock()).beat_s < policy.lease_s / 4


def test_a_node_that_has_never_been_welcome_has_nothing_that_could_end():
    """Its machine may be reached long before the controller has time for it: it holds no slot that others could get."""
    clock = Clock()
    lease = Lease(ENDS_S, clock)
    lease.renew(clock.now)
    clock.now += 100 * ENDS_S
    assert not lease.is_over()
    lease.begin()
    clock.now += ENDS_S + 0.1
    assert lease.is_over()
