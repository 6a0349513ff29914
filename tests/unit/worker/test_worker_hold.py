"""All ranks end after the same step: it is whole, none follows it, and nothing stands still for ever."""

import threading
import time

from everstep.worker.link.hold import Hold


def test_the_step_is_the_last_one_until_it_is_let_go():
    hold, order = Hold(), []
    assert hold.ask(3, 60.0) == ""

    def train():
        for step in range(6):
            order.append(step)
            if hold.is_due(step):
                hold.wait(step)

    training = threading.Thread(target=train)
    training.start()
    while order != [0, 1, 2, 3]:
        time.sleep(0.001)
    time.sleep(0.05)
    assert order == [0, 1, 2, 3]
    hold.let_go()
    training.join(60)
    assert order == [0, 1, 2, 3, 4, 5]


def test_a_rank_that_nobody_ends_goes_on_by_itself():
    hold = Hold()
    hold.ask(0, 0.05)
    assert hold.is_due(0)
    hold.wait(0)
    assert not hold.ask(1, 60.0)


def test_a_step_that_is_complete_cannot_be_the_last_one():
    hold = Hold()
    assert not hold.is_due(4)
    assert "step 4 is complete already" in hold.ask(4, 60.0)
    assert not hold.is_due(5)


def test_of_two_wishes_the_later_one_counts():
    hold = Hold()
    hold.ask(2, 60.0)
    hold.ask(5, 60.0)
    assert not hold.is_due(2)
    assert hold.is_due(5)
