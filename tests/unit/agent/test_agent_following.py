"""An agent takes orders of the newest epoch that its launcher has told, and goes no further than others confirm."""

import pytest

from everstep.agent.lease.clock import Lease
from everstep.agent.lease.following import UNREACHED_S, Following

ENDS_S = 3.0


class Here:
    """The clock, the link and the gate of one agent."""

    def __init__(self):
        self.now = 100.0
        self.heard = 100.0
        self.left = []
        self.unreached_s = 1.0
        self.lease = Lease(ENDS_S, lambda: self.now)
        self.lease.begin()
        self.following = Following(self.lease, self, self)

    def heard_at(self):
        return self.heard

    def leave(self, url=""):
        self.left.append(url)

    def told(self, **word):
        self.following.take({"controller": word})

    def goes_on(self, seconds):
        """Whether the lease lasts, with a link that carries everything."""
        self.now += seconds
        self.heard = self.now
        self.lease.renew(self.following.heard_at())
        return not self.lease.is_over()


@pytest.fixture
def here():
    return Here()


def test_a_newer_controller_is_obeyed_and_an_older_one_never_again(here):
    here.told(epoch=1)
    assert here.left == []
    here.told(epoch=2)
    assert here.left == [""]
    here.told(epoch=2, url="ws://b")
    here.told(epoch=1, url="ws://a")
    assert here.left == ["", "ws://b"]


def test_where_a_successor_may_come_a_question_waits_longer_for_it(here):
    here.told(epoch=1)
    assert here.unreached_s == UNREACHED_S


def test_a_controllers_own_node_goes_no_further_than_other_hosts_confirm(here):
    here.told(epoch=1, confirmed_at=100.0)
    assert here.goes_on(2.0)
    here.told(epoch=1, confirmed_at=101.0)
    assert here.goes_on(0.5)
    here.lease.begin(here.following.latest())  # it was connected again
    assert here.goes_on(1.0)
    assert not here.goes_on(1.0)


def test_a_successor_counts_from_when_it_begins(here):
    here.told(epoch=1, confirmed_at=100.0)
    here.now = 102.5
    here.told(epoch=2)
    here.now = 105.0
    assert not here.lease.is_over()
    here.now = 105.6
    assert here.lease.is_over()


def test_what_is_over_stays_over_until_the_controller_says_otherwise(here):
    here.now = 104.0
    assert here.lease.is_over()
    here.told(epoch=1)
    here.told(epoch=2)
    assert here.lease.is_over()


@pytest.mark.parametrize("word", [{}, {"epoch": "1"}, {"epoch": None}])
def test_other_words_mean_nothing(here, word):
    here.following.take({"controller": word})
    here.following.take({"controller": 7})
    assert here.following.epoch == 0
    assert here.left == []
