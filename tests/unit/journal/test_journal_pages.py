"""Pages of a journal are what a whole reading gives, and cost no more than themselves."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everstep.errors import JournalError
from everstep.journal.format import encode_header, encode_record
from everstep.journal.pages import Pages
from everstep.model.events import StopRequested
from everstep.model.record import Header, Record


def lines(sizes):
    header = Header(run="r1", everstep_version="1", policy={})
    records = [
        Record(seq=seq, at=1.0, gen=0, event=StopRequested(at=1.0, why="x" * size, signal=15))
        for seq, size in enumerate(sizes, 1)
    ]
    return encode_header(header), records


@given(
    st.lists(st.integers(0, 300), max_size=40),
    st.integers(1, 9),
    st.integers(1, 2000),
    st.lists(st.tuples(st.integers(-3, 45), st.integers(0, 40)), min_size=1, max_size=8),
)
@settings(deadline=None, max_examples=60)
def test_any_page_is_the_next_records_and_no_larger_than_agreed(tmp_path_factory, sizes, stride, most, asked):
    path = tmp_path_factory.mktemp("pages") / "journal.jsonl"
    header, records = lines(sizes)
    path.write_bytes(header + b"".join(map(encode_record, records)) + b'{"seq": 99, "cut')
    pages = Pages(path, most=most, stride=stride)
    for after, last in asked:
        last = min(last, len(records))
        found = pages.read(after, last)
        expected = records[max(after, 0) : last]
        assert found == expected[: len(found)]
        assert bool(found) == bool(expected)
        size = sum(len(encode_record(record)) for record in found)
        assert len(found) == 1 or size <= most
        if len(found) < len(expected) and found:
            assert size + len(encode_record(expected[len(found)])) > most


def test_a_journal_that_grows_is_read_on_from_where_the_page_begins(tmp_path, monkeypatch):
    path = tmp_path / "journal.jsonl"
    header, records = lines([100] * 1000)
    path.write_bytes(header + b"".join(map(encode_record, records[:900])))
    pages = Pages(path, stride=100)
    assert [one.seq for one in pages.read(890, 900)] == list(range(891, 901))
    with path.open("ab") as file:
        file.write(b"".join(map(encode_record, records[900:])))
    count, read = [0], Pages._line

    def counted(self, *args):
        count[0] += 1
        return read(self, *args)

    monkeypatch.setattr(Pages, "_line", counted)
    assert [one.seq for one in pages.read(995, 1000)] == [996, 997, 998, 999, 1000]
    assert count[0] <= 2 * 100 + 5, "not the file from its beginning"


def test_damage_has_a_sentence(tmp_path):
    path = tmp_path / "journal.jsonl"
    with pytest.raises(JournalError, match="cannot read"):
        Pages(path).read(0, 1)
    header, _ = lines([])
    path.write_bytes(header + b"garbage\n")
    with pytest.raises(JournalError, match="record 1"):
        Pages(path).read(0, 1)
    with pytest.raises(JournalError, match="cut off"):
        Pages(path).read(1, 2)
