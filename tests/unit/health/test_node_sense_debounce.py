"""Which alerts are passed on: network alerts twice, repeats folded, a bounded number per minute."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from everstep.model.facts import Alert
from everstep.probes.node import debounce
from everstep.probes.node.debounce import Debounce

LINK = Alert(
    at=0.0, code="ES-IB09", sentence="link down", component="nic", blame="network", severity="error",
    action="CHECK_NETWORK", source="kernel log", device="eth4",
)  # fmt: skip
GPU = msgspec.structs.replace(LINK, code="ES-G79", blame="machine", severity="fault", component="gpu", device="gpu 3")
WARNING = msgspec.structs.replace(GPU, code="ES-M30", severity="warning", device="machine")


def severities(told: list[Alert]) -> list[str]:
    return [one.severity for one in told]


def test_two_network_alerts_within_five_minutes():
    pure = Debounce()
    assert severities(pure.take(0.0, [LINK])) == ["warning"]
    assert severities(pure.take(299.0, [LINK])) == ["error"]


def test_the_second_one_of_a_card_goes_with_its_machine():
    pure = Debounce()
    (first,) = pure.take(0.0, [LINK])
    (second,) = pure.take(10.0, [LINK])
    assert (first.action, second.action) == ("CHECK_NETWORK", "DRAIN_AND_RESTART_NODE")
    table = msgspec.structs.replace(LINK, component="network", device="")
    assert [one.action for at in (20.0, 30.0) for one in pure.take(at, [table])] == ["CHECK_NETWORK"] * 2


def test_two_network_alerts_further_apart():
    pure = Debounce()
    assert severities(pure.take(0.0, [LINK])) == ["warning"]
    assert severities(pure.take(301.0, [LINK])) == ["warning"]


def test_one_device_does_not_confirm_another_and_two_sources_do_not_either():
    """One event is seen by the kernel log and by a counter: that is not twice."""
    pure = Debounce()
    other = msgspec.structs.replace(LINK, device="eth5")
    counter = msgspec.structs.replace(LINK, source="interfaces", code="ES-M13")
    assert severities(pure.take(0.0, [LINK, other, counter])) == ["warning"] * 3


def test_a_machine_fault_waits_for_nothing():
    assert severities(Debounce().take(0.0, [GPU])) == ["fault"]


def test_repeats_are_folded_and_told_ever_more_rarely():
    pure = Debounce()
    told = [(at, one.count) for at in range(0, 7300, 10) for one in pure.take(float(at), [GPU])]
    assert told == [(0, 1), (60, 6), (360, 30), (3360, 300), (6360, 300)]


def test_repeats_within_one_batch_are_folded_too():
    (told,) = Debounce().take(0.0, [GPU, GPU])
    assert told.count == 1
    pure = Debounce()
    pure.take(0.0, [GPU, GPU])
    (later,) = pure.take(60.0, [GPU])
    assert later.count == 2


def test_worse_is_told_at_once():
    pure = Debounce()
    pure.take(0.0, [msgspec.structs.replace(GPU, severity="warning")])
    assert severities(pure.take(1.0, [GPU])) == ["fault"]


def test_another_party_to_blame_is_told_at_once():
    pure = Debounce()
    pure.take(0.0, [msgspec.structs.replace(GPU, blame="user")])
    assert [one.blame for one in pure.take(1.0, [GPU])] == ["machine"]


def test_what_was_not_seen_for_hours_is_new():
    pure = Debounce()
    pure.take(0.0, [GPU])
    assert [one.count for one in pure.take(debounce.FORGET_S + 1, [GPU])] == [1]


def test_a_flood_is_bounded_faults_come_through_and_what_was_left_out_is_said():
    pure = Debounce()
    flood = [msgspec.structs.replace(WARNING, device=f"d{n}") for n in range(500)]
    assert len(pure.take(0.0, flood)) == debounce.MAX_WARNINGS_PER_MINUTE
    assert severities(pure.take(1.0, [GPU])) == ["fault"]
    (summary,) = pure.take(61.0, [])
    assert (summary.code, summary.count) == ("ES-M00", 500 - debounce.MAX_WARNINGS_PER_MINUTE)
    assert pure.take(62.0, []) == []


@given(
    st.lists(
        st.tuples(st.floats(0, 50), st.sampled_from([LINK, GPU, WARNING]), st.integers(0, 30), st.integers(1, 3)),
        max_size=300,
    )
)
def test_never_more_than_the_bound_and_nothing_is_lost(history):
    """Every alert is in the count of a report, or still waits to be in the next one of its kind."""
    pure, now, told = Debounce(), 0.0, []
    for passed, one, device, count in history:
        now += passed
        given_one = msgspec.structs.replace(one, device=f"d{device}", count=count)
        told += [(now, each) for each in pure.take(now, [given_one])]
    for start, _ in told:
        within = [each for at, each in told if start <= at < start + 60.0 and each.severity != "fault"]
        assert len(within) <= 2 * debounce.MAX_PER_MINUTE
    seen = {(one.code, f"d{device}") for _, one, device, _ in history}
    assert {(each.code, each.device) for _, each in told} - {("ES-M00", "")} <= seen
    assert sum(each.count for _, each in told) <= sum(count for *_, count in history)


def codes(told: list[Alert]) -> list[str]:
    return [one.code for one in told]


def test_a_cause_that_repeats_is_news_when_a_rank_has_just_died():
    pure = Debounce()
    root = msgspec.structs.replace(GPU, role="root")
    assert codes(pure.take(0.0, [root])) == ["ES-G79"]
    assert codes(pure.take(20.0, [root, WARNING])) == ["ES-M30"], "it goes on: folded"
    assert codes(pure.take(25.0, [], has_died=True)) == ["ES-G79"], "what was folded a moment before the end"
    assert pure.take(25.5, [], has_died=True) == [], "once"
    assert codes(pure.take(26.0, [root], has_died=True)) == ["ES-G79"], "and what comes after it"
    assert pure.take(50.0, [root]) == []
    assert pure.take(90.0, [], has_died=True) == [], "long before: it has nothing to do with it"
    assert severities(pure.take(95.0, [LINK], has_died=True)) == ["warning"], "a link may bounce all the same"
