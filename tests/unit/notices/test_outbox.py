"""One message per incident, edited where that is possible; not too many; settings that are wrong are a sentence."""

from pathlib import Path

import msgspec
import pytest

from everstep.errors import ConfigError
from everstep.journal.fold import fold
from everstep.journal.reader import read_journal
from everstep.notices.messages import MAX_CHARS, Message, messages_of
from everstep.notices.outbox import EDIT_EVERY_S, Due, Outbox, Outcome
from everstep.notices.settings import Receiver, receivers_of

GOLDEN_JOURNAL = Path(__file__).parents[2] / "golden/journal.jsonl"

READING = read_journal(GOLDEN_JOURNAL)
PLAIN = Receiver(kind="webhook", name="hook", url="http://x", most=2, per_s=100.0, wait_s=60.0)
EDITING = Receiver(kind="slack", name="chat", token="t", channel="c", most=2, per_s=100.0)


def message(key="i1", text="disturbed", *, at=0.0, **known):
    fields = {"state": "open", "is_over": False, "needs_you": False, "code": "ES-P09", "node": "n0", **known}
    return Message(key=key, run="r1", at=at, text=text, **fields)


def over(key="i1", text="recovered", **known):
    return message(key, text, **{"state": "recovered", "is_over": True, **known})


def deliver(outbox, messages, now, *, is_sent=True):
    told = []
    while (due := outbox.due(messages, now)) is not None:
        outbox.settle(due, now, "handle", is_sent=is_sent)
        told.append((due.message.key, due.revision))
    return told


def test_who_cannot_edit_is_told_once_when_it_is_over():
    outbox = Outbox(PLAIN)
    assert deliver(outbox, [message()], 1.0) == []
    assert deliver(outbox, [over()], 2.0) == [("i1", 1)]
    assert deliver(outbox, [over(text="later words")], 3.0) == []


@pytest.mark.parametrize("now_or_state", [61.0, "needs-you"])
def test_who_cannot_edit_does_not_wait_for_a_person_or_for_ever(now_or_state):
    outbox = Outbox(PLAIN)
    waits = now_or_state == "needs-you"
    assert deliver(outbox, [message(needs_you=waits)], 1.0 if waits else now_or_state) == [("i1", 1)]
    assert deliver(outbox, [over()], 99.0) == [], "one message per incident"


def test_who_can_edit_is_told_at_once_and_edits_are_not_new_messages():
    outbox = Outbox(EDITING)
    assert deliver(outbox, [message()], 1.0) == [("i1", 1)]
    assert deliver(outbox, [message(text="forming")], 1.1) == [], "not at every word"
    assert deliver(outbox, [message(text="forming")], 1.1 + EDIT_EVERY_S) == [("i1", 2)]
    assert deliver(outbox, [over()], 7.0) == [("i1", 3)], "the end is told at once"
    assert outbox.counts == {Outcome.SENT: 1, Outcome.EDITED: 2}


def test_too_many_are_dropped_counted_and_mentioned_later():
    outbox = Outbox(PLAIN)
    many = [over(f"i{number}") for number in range(5)]
    assert deliver(outbox, many, 1.0) == [("i0", 1), ("i1", 1)]
    assert outbox.counts[Outcome.DROPPED] == 3
    due = outbox.due([*many, over("i9")], 200.0)
    assert (due.message.key, due.num_untold) == ("i9", 3)
    outbox.settle(due, 200.0, None, is_sent=True)
    assert outbox.due([over("i10")], 201.0).num_untold == 0


def test_what_failed_is_counted_and_given_up():
    outbox = Outbox(EDITING)
    assert deliver(outbox, [message()], 1.0, is_sent=False) == [("i1", 1)]
    assert deliver(outbox, [over()], 50.0) == []
    assert outbox.counts == {Outcome.FAILED: 1}


def test_drills_and_what_came_before_are_not_told():
    outbox = Outbox(PLAIN)
    outbox.know(over())
    superseded = msgspec.structs.replace(over("i3"), state="superseded")
    assert deliver(outbox, [over(), over("i2", is_drill=True), superseded], 1.0) == []
    assert deliver(Outbox(msgspec.structs.replace(PLAIN, drills=True)), [over("i2", is_drill=True)], 1.0)


def test_a_recorded_run_in_words():
    view = fold(READING.header, READING.entries)
    told = {each.key: each for each in messages_of(view)}
    assert told["i2"].text == (
        "r7f3 recovered in 0.54s: the agent of n1 is lost (its process was killed by SIGKILL), and ranks 2, 3 with it "
        "(ES-P06 agent-lost). Redid 0 steps. Standbys left: 0."
    )
    assert told["i4"].needs_you
    assert "gave up" in told["i4"].text
    assert "end" not in told, "the last incident says it"
    for seq in range(1, len(READING.entries) + 1):
        for each in messages_of(fold(READING.header, READING.entries[:seq])):
            assert 0 < len(each.text) <= MAX_CHARS


@pytest.mark.parametrize(
    ("tables", "says"),
    [
        ("x", "must be tables"),
        ([{"kind": "pigeon"}], "there are: webhook"),
        ([{"kind": "webhook"}], "needs url"),
        ([{"kind": "webhook", "url": "ftp://x"}], "https://"),
        ([{"kind": "webhook", "url_env": "UNSET"}], "is not set"),
        ([{"kind": "slack", "token": "t"}], "token and channel"),
        ([{"kind": "email", "host": "h", "to": ["a@b"]}], "needs sender"),
        ([{"kind": "command", "argv": "ls"}], "Expected `array`"),
        ([{"kind": "command", "argv": ["ls"], "colour": 1}], "unknown key 'colour'"),
        ([{"kind": "command", "argv": ["ls"], "name": "a"}] * 2, "two receivers"),
        ([{"kind": "webhook", "url": "http://x", "most": 0}], "must be positive"),
    ],
)
def test_settings_that_are_wrong(tables, says):
    with pytest.raises(ConfigError, match=says.replace("(", "\\(")):
        receivers_of(tables, {}, "f.toml")


def test_a_secret_from_the_environment_or_a_file(tmp_path):
    (tmp_path / "url").write_text("https://file\n")
    tables = [{"kind": "webhook", "url_env": "HOOK"}, {"kind": "webhook", "url_file": str(tmp_path / "url")}]
    found = receivers_of(tables, {"HOOK": "https://env"}, "f.toml")
    assert [receiver.url for receiver in found] == ["https://env", "https://file"]
    assert [receiver.name for receiver in found] == ["webhook-1", "webhook-2"]


def test_a_clock_that_is_set_back_keeps_nobody_silent():
    outbox = Outbox(PLAIN)
    assert len(deliver(outbox, [over("i1"), over("i2")], 1e6)) == 2
    assert deliver(outbox, [over("i3")], 1e6 - 86400.0) == [("i3", 1)]
    editing = Outbox(EDITING)
    assert deliver(editing, [message()], 1e6) == [("i1", 1)]
    assert deliver(editing, [message(text="more")], 1e6 - 86400.0) == [("i1", 2)]


def test_nobody_is_told_again_of_what_was_long_ago():
    everything = [over(f"i{number}") for number in range(10_050)]
    outbox = Outbox(PLAIN)
    for each in everything:
        outbox.settle(Due(message=each, handle=None, revision=1, num_untold=0), 1.0, None, is_sent=True)
    assert outbox.due(everything, 9e9) is None
