"""The feed of the page: whatever is lost, cut or told twice, the reader ends with the rows that there are."""

from hypothesis import given, settings
from hypothesis import strategies as st

from everstep.web.feed import Feed
from everstep.web.live import event_of

ROWS = st.dictionaries(st.sampled_from("abcdef"), st.fixed_dictionaries({"x": st.integers(0, 2)}), max_size=6)


class Reader:
    def __init__(self):
        self.rows, self.version = {}, ""

    def take(self, patch):
        if patch.reset:
            self.rows = {}
        for key, row in patch.rows.items():
            if row is None:
                self.rows.pop(key, None)
            else:
                self.rows[key] = row
        self.version = patch.version


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(ROWS, st.sampled_from(["told", "lost", "twice", "cut"])), max_size=12))
def test_a_reader_that_loses_messages_and_comes_back_has_each_row_once(history):
    feed, reader = Feed("e1"), Reader()
    for rows, fate in history:
        patch = feed.update(rows)
        if patch is None or fate == "lost":
            continue
        if fate == "cut":
            patch = feed.since(reader.version)
        elif patch.version.split(".")[1] != str(int(reader.version.partition(".")[2] or 0) + 1):
            patch = feed.since(reader.version)  # a gap: what EventSource does with the id it has
        for _ in range(2 if fate == "twice" else 1):
            reader.take(patch)
        assert reader.rows == rows
    reader.take(feed.since(reader.version))
    assert reader.rows == (history[-1][0] if history else {})


def test_a_reader_of_another_controller_gets_everything_and_forgets_what_it_had():
    feed = Feed("new")
    feed.update({"a": {"x": 1}})
    for version in ("old.1", "", "new", "new.", "new.-1", "new.99", "new." + "9" * 30, "new.\u0661", "\x00"):
        patch = feed.since(version)
        assert patch.reset
        assert patch.rows == {"a": {"x": 1}}
    assert not feed.since("new.1").reset
    assert feed.since("new.1").rows == {}


def test_the_time_of_looking_is_no_news():
    feed = Feed("e")
    assert feed.update({"head": {"as_of": 1.0, "step": 5}}) is not None
    assert feed.update({"head": {"as_of": 2.0, "step": 5}}) is None
    assert feed.update({"head": {"as_of": 3.0, "step": 6}}) is not None


@given(st.text())
def test_no_text_begins_a_field_or_a_message_of_its_own(text):
    feed = Feed("e")
    patch = feed.update({"a": {"x": text.encode(errors="replace").decode()}})
    lines = event_of(patch).split(b"\n")
    assert [line.split(b":")[0] for line in lines] == [b"id", b"data", b"", b""]
