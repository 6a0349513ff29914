"""Skipping replaced accounts changes how long a journal takes to read, and nothing that is read from it."""

import re
from pathlib import Path

import msgspec
import pytest

from everstep.errors import JournalError
from everstep.journal.fold import fold
from everstep.journal.format import encode_header, encode_record
from everstep.journal.load import load_run
from everstep.journal.reader import Cursor, read_journal
from everstep.journal.thin import KEEP_NEWEST
from everstep.journal.view import RunView
from everstep.model.events import ProgressReported
from everstep.model.record import Header, Record
from everstep.model.spec import RunSpec
from everstep.testing.cluster import Cluster

HEADER = Header(run="r0001", everstep_version="test", policy={})


def long_records(num_steps: int) -> list[Record]:
    """As `Cluster` writes them, but its accounts told periodically, as agents do."""
    cluster = Cluster(RunSpec(program="train.py", num_slots=2, nproc_per_node=2))
    cluster.start()
    cluster.train(num_steps)
    cluster.kill(1)
    cluster.train(num_steps)
    records = []
    for record in cluster.records:
        event = record.event
        if type(event).__name__ == "MarksReported" and not record.actions:
            event = ProgressReported(at=event.at, node=event.node, generation=event.generation, accounts=event.accounts)
        records.append(msgspec.structs.replace(record, event=event))
    return records


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "journal.jsonl"
    records = long_records(KEEP_NEWEST)
    path.write_bytes(encode_header(HEADER) + b"".join(map(encode_record, records)))
    return path


GENERATION_1 = '"generation":1,'
PACES = ("step_times", "pace")
"""What lies between two accounts is known as their mean, so it depends on how many are read."""


def without_step_times(view: RunView) -> dict[str, object]:
    return {name: value for name, value in msgspec.to_builtins(view, enc_hook=dict).items() if name not in PACES}


def test_the_view_is_the_same(path: Path) -> None:
    whole, thin = read_journal(path), read_journal(path, thin=True)
    assert len(thin.entries) < len(whole.entries) / 2
    assert without_step_times(fold(thin.header, thin.entries)) == without_step_times(fold(whole.header, whole.entries))
    assert load_run(path).step_times[-50:] == fold(whole.header, whole.entries).step_times[-50:]


def test_the_pace_of_the_skipped_is_the_mean_between_those_that_are_read(path: Path) -> None:
    reading = read_journal(path, thin=True)
    lines = path.read_text().splitlines()
    begun = [1700000001.0, 1700000201.0]  # the cluster of the tests tells a rank's first step anew each time
    told = [
        re.sub(r'"first_step_at":[0-9.]+', f'"first_step_at":{begun[line.count(GENERATION_1) > 0]}', line)
        for line in lines
    ]
    path.write_text("\n".join(told) + "\n")
    whole_view, thin_view = (fold(r.header, r.entries) for r in (read_journal(path), read_journal(path, thin=True)))
    whole, thin = whole_view.pace.intervals(), thin_view.pace.intervals()
    assert len(reading.entries) < len(lines) / 2
    assert (whole[0].begin, whole[-1].begin) == pytest.approx((thin[0].begin, thin[-1].begin), abs=12)
    assert len(thin) > 0.9 * len(whole), "no hole where accounts were skipped"
    medians = [sorted(i.median_s for i in found)[len(found) // 2] for found in (whole, thin)]
    assert medians[1] == pytest.approx(medians[0], rel=0.1)


def test_what_was_decided_is_never_skipped(path: Path) -> None:
    decided = [e.seq for e in read_journal(path).entries if e.actions]
    seqs = {e.seq for e in read_journal(path, thin=True).entries}
    assert decided
    assert seqs.issuperset(decided)


def test_a_missing_record_among_the_skipped_is_still_seen(path: Path) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    skipped = {e.seq for e in read_journal(path).entries} - {e.seq for e in read_journal(path, thin=True).entries}
    seq = sorted(skipped)[len(skipped) // 2]
    del lines[seq]
    path.write_bytes(b"".join(lines))
    with pytest.raises(JournalError, match=f"line {seq + 1}: record {seq + 1} follows record {seq - 1}"):
        read_journal(path, thin=True)


def test_the_cursor_stands_at_the_same_place(path: Path) -> None:
    one, other = Cursor(path), Cursor(path)
    one.read()
    other.read(thin=True)
    assert (one.offset, one.seq, one.num_lines) == (other.offset, other.seq, other.num_lines)
