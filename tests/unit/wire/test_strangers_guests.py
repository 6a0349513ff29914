"""Who keeps a place at the controller's port: no crowd of other users keeps out ours."""

from hypothesis import given, settings
from hypothesis import strategies as st

from everstep.wire.strangers.guests import EACH_SHARE, MOST_OF_USER, OTHERS_SHARE, Guests

MOST = 64
OURS = 1000


class Guest:
    def __init__(self, *, is_busy=False):
        self.is_busy = is_busy
        self.is_gone = False

    def abort(self):
        self.is_gone = True


def crowd(guests, user, number, **more):
    made = [Guest(**more) for _ in range(number)]
    return [guest for guest in made if guests.admit(guest, user)]


def test_a_crowd_of_one_stranger_has_an_eighth_and_its_oldest_idle_one_goes_first():
    guests = Guests(MOST, frozenset({OURS}))
    all_of_them = crowd(guests, 7, 500)
    left = [guest for guest in all_of_them if not guest.is_gone]
    assert len(left) == MOST // EACH_SHARE
    assert left == all_of_them[-len(left) :]


def test_a_user_of_this_machine_has_few_where_an_address_may_have_a_fleet_behind_it():
    guests = Guests(4096, frozenset({OURS}))
    assert sum(not guest.is_gone for guest in crowd(guests, 7, 1000)) == MOST_OF_USER
    assert sum(not guest.is_gone for guest in crowd(guests, "203.0.113.9", 1000)) == 4096 // EACH_SHARE
    assert not any(guest.is_gone for guest in crowd(guests, OURS, 1000))


def test_many_strangers_have_half_and_what_is_ours_stays():
    guests = Guests(MOST, frozenset({OURS}))
    ours = crowd(guests, OURS, MOST // 2)
    for user in [None, *range(50)]:
        crowd(guests, user, 50)
    assert len(guests) == MOST
    assert not any(guest.is_gone for guest in ours)
    assert len(crowd(guests, OURS, 10)) == 10, "a verb gets a place of a stranger's"
    assert not any(guest.is_gone for guest in ours)


def test_one_that_is_being_answered_keeps_its_place_and_the_next_stranger_is_refused():
    guests = Guests(MOST, frozenset({OURS}))
    busy = crowd(guests, 7, 500, is_busy=True)
    assert len(busy) == MOST // EACH_SHARE
    assert not any(guest.is_gone for guest in busy)


def test_who_asks_again_is_not_the_oldest():
    guests = Guests(MOST, frozenset({OURS}))
    first, *others = crowd(guests, 7, MOST // EACH_SHARE)
    guests.touch(first)
    crowd(guests, 7, 1)
    assert not first.is_gone
    assert others[0].is_gone


def test_a_fleet_that_comes_back_at_once_does_not_push_out_itself():
    guests = Guests(MOST, frozenset({OURS}))
    let_in = crowd(guests, OURS, 10 * MOST)
    assert len(let_in) == MOST
    assert not any(guest.is_gone for guest in let_in)


def test_beyond_this_machine_an_address_is_a_user():
    guests = Guests(MOST, frozenset({OURS}))
    crowd(guests, "203.0.113.9", 10 * MOST)
    hosts = [f"10.0.0.{number}" for number in range(MOST // OTHERS_SHARE)]
    let_in = [guest for host in hosts for guest in crowd(guests, host, 1, is_busy=True)]
    assert len(let_in) > MOST // OTHERS_SHARE - 2
    assert not any(guest.is_gone for guest in let_in)
    assert len(guests._num_of) <= MOST + 2


@given(st.lists(st.tuples(st.sampled_from([OURS, 0, 1, 2, 3, None]), st.booleans(), st.booleans()), max_size=300))
@settings(deadline=None, max_examples=100)
def test_no_history_gives_others_more_than_their_share(history):
    guests, there = Guests(MOST, frozenset({OURS, 0})), []
    for user, is_busy, leaves in history:
        guest = Guest(is_busy=is_busy)
        was_ours = [one for one, owner in there if owner in (OURS, 0)]
        if guests.admit(guest, user):
            there.append((guest, user))
        if user not in (OURS, 0):
            assert not any(one.is_gone for one in was_ours), "a stranger never takes a place of ours"
        there = [(one, owner) for one, owner in there if not one.is_gone]
        if leaves and there:
            one, _ = there.pop(0)
            guests.leave(one)
        others = [owner for _, owner in there if owner not in (OURS, 0)]
        assert len(others) <= MOST // OTHERS_SHARE
        assert all(others.count(owner) <= MOST // EACH_SHARE for owner in set(others) - {None})
        assert len(guests) == len(there) <= MOST
