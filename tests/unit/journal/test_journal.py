"""The journal: what is appended is read back, and no cut, garbage or full disk loses a record before it."""

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from everstep.errors import JournalError, RunLockedError
from everstep.journal.beside import lock
from everstep.journal.format import PartialRecord, UnknownRecord, encode_record
from everstep.journal.reader import Cursor, read_journal
from everstep.journal.writer import Journal
from everstep.model.actions import AcquireNode, SetTimer
from everstep.model.events import ControllerStarted, RunStarted, TimerFired
from everstep.model.record import Header, Record
from everstep.model.spec import RunSpec

HEADER = Header(run="r1", everstep_version="0.1.0", policy={"name": "default", "max_restarts": 10})


def record(seq: int, key: str = "") -> Record:
    event = TimerFired(at=100.0 + seq, key=key or f"timer-{seq}")
    return Record(seq=seq, at=100.0 + seq, gen=0, event=event, actions=(SetTimer(why="w", key="k", due_at=1.5),))


def first_record() -> Record:
    event = RunStarted(at=100.0, run="r1", spec=RunSpec(program="train.py"), everstep_version="0.1.0", policy="default")
    return Record(seq=1, at=100.0, gen=-1, event=event)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.jsonl"


def written(path: Path, num_records: int) -> list[Record]:
    records = [record(seq) for seq in range(1, num_records + 1)]
    with Journal.create(path, HEADER) as journal:
        journal.append(*records)
    return records


def test_what_was_appended_is_read_back(path: Path) -> None:
    with Journal.create(path, HEADER) as journal:
        journal.append(first_record())
        journal.append(record(2), record(3))
    reading = read_journal(path)
    assert reading.header == HEADER
    assert reading.entries == [first_record(), record(2), record(3)]
    assert reading.torn_bytes == 0
    assert not path.with_name("journal.jsonl.new").exists()


def test_an_opened_journal_goes_on_where_it_stopped(path: Path) -> None:
    records = written(path, 2)
    journal, found, torn_bytes = Journal.open(path)
    with journal:
        assert (found, torn_bytes, journal.seq, journal.header) == (records, 0, 2, HEADER)
        journal.append(record(3))
    assert read_journal(path).entries == [*records, record(3)]


def test_a_cut_at_every_byte_of_the_last_record_loses_only_that_record(path: Path) -> None:
    records = written(path, 3)
    whole = path.read_bytes()
    last_begins = len(whole) - len(encode_record(records[-1]))
    for cut in range(last_begins, len(whole)):
        path.write_bytes(whole[:cut])
        complete = cut == len(whole) - 1  # only the newline is missing
        kept = records if complete else records[:2]
        torn = 0 if complete else cut - last_begins
        assert (read_journal(path).entries, read_journal(path).torn_bytes) == (kept, torn)
        assert path.read_bytes() == whole[:cut], "reading must not repair"
        journal, found, torn_bytes = Journal.open(path)
        with journal:
            assert (found, torn_bytes) == (kept, torn)
            journal.append(record(len(kept) + 1))
        assert read_journal(path).entries == [*kept, record(len(kept) + 1)]
    torn_files = sorted(path.parent.glob("journal.torn-*"))
    assert len(torn_files) == len(whole) - last_begins - 2
    assert path.with_name("journal.torn-1").read_bytes() == whole[last_begins : last_begins + 1]


def test_a_cut_anywhere_before_is_seen_or_costs_only_the_tail(path: Path) -> None:
    records = written(path, 3)
    whole = path.read_bytes()
    header_ends = whole.index(b"\n")
    for cut in range(len(whole)):
        path.write_bytes(whole[:cut])
        if cut <= header_ends:
            with pytest.raises(JournalError, match="no complete header"):
                read_journal(path)
            with pytest.raises(JournalError, match="no complete header"):
                Journal.open(path)
        else:
            entries = read_journal(path).entries
            assert entries == records[: len(entries)]


def test_a_last_line_of_zeros_is_a_torn_write(path: Path) -> None:
    records = written(path, 2)
    for tail in (b"\0" * 100, b"\0" * 100 + b"\n"):
        path.write_bytes(b"".join([path.read_bytes(), tail]))
        assert read_journal(path).entries == records
        journal, found, torn_bytes = Journal.open(path)
        journal.close()
        assert (found, torn_bytes) == (records, len(tail))


def test_damage_in_the_middle_names_the_line(path: Path) -> None:
    written(path, 3)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:2], b"{garbage\n", *lines[3:]]))
    for attempt in (read_journal, Journal.open):
        with pytest.raises(JournalError, match="damaged at line 3"):
            attempt(path)


@pytest.mark.parametrize("dropped", [1, 2])
def test_a_missing_record_is_detected(path: Path, dropped: int) -> None:
    written(path, 3)
    lines = path.read_bytes().splitlines(keepends=True)
    del lines[dropped]
    path.write_bytes(b"".join(lines))
    with pytest.raises(JournalError, match=f"line {dropped + 1}: record {dropped + 1} follows record {dropped - 1}"):
        read_journal(path)


def test_a_newer_schema_is_refused_and_left_alone(path: Path) -> None:
    written(path, 1)
    header, line = path.read_bytes().splitlines(keepends=True)
    newer_header = header.replace(b'"v":1', b'"v":2').replace(b"0.1.0", b"9.0.0")
    for text in (newer_header + line, header + b'{"v":2,"seq":1,"something":"else"}\n' + line):
        path.write_bytes(text)
        for attempt in (read_journal, Journal.open):
            with pytest.raises(JournalError, match=r"schema version 2.*reads up to version 1.*newer one"):
                attempt(path)
        assert path.read_bytes() == text
    path.write_bytes(newer_header)
    with pytest.raises(JournalError, match=r"everstep 9\.0\.0"):
        read_journal(path)


def test_unknown_kinds_of_the_same_version_are_kept_raw(path: Path) -> None:
    written(path, 1)
    event = b'{"v":1,"seq":2,"at":5.0,"gen":0,"event":{"type":"GpuMelted","at":5.0,"gpu":3}}\n'
    actions = (
        b'{"v":1,"seq":3,"at":6.0,"gen":0,"event":{"type":"TimerFired","at":6.0,"key":"k"},"actions":'
        b'[{"type":"CallFireBrigade","why":"hot"},{"type":"AcquireNode","why":"w","request":"q"}]}\n'
    )
    path.write_bytes(path.read_bytes() + event + actions)
    _, unknown, partial = read_journal(path).entries
    assert isinstance(unknown, UnknownRecord)
    assert (unknown.seq, unknown.type, unknown.raw["event"]["gpu"]) == (2, "GpuMelted", 3)
    assert isinstance(partial, PartialRecord)
    assert partial.actions == (AcquireNode(why="w", request="q"),)
    assert partial.unknown_actions == ({"type": "CallFireBrigade", "why": "hot"},)
    journal, records, _ = Journal.open(path)
    with journal:
        assert [r.seq for r in records] == [1, 3]
        assert journal.unknown == (unknown,)
        journal.append(record(4))


def test_a_known_kind_with_wrong_content_is_damage(path: Path) -> None:
    written(path, 2)
    header, one, two = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(header + one.replace(b'"key":"timer-1"', b'"key":17') + two)
    with pytest.raises(JournalError, match=r"line 2.*str"):
        read_journal(path)


@pytest.mark.parametrize("content", [b"", b"\n", b"hello\n", b'{"v":1}\n', b"[]\n", b"\xff\xfe\n"])
def test_something_else_is_not_a_journal(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    for attempt in (read_journal, Journal.open):
        with pytest.raises(JournalError):
            attempt(path)
    assert path.read_bytes() == content


def test_a_missing_journal_says_so(path: Path) -> None:
    with pytest.raises(JournalError, match="No such file"):
        read_journal(path)
    with pytest.raises(JournalError, match="No such file"):
        Journal.open(path)


def test_create_refuses_an_existing_run(path: Path) -> None:
    records = written(path, 1)
    with pytest.raises(JournalError, match="exists already"):
        Journal.create(path, HEADER)
    assert read_journal(path).entries == records


def test_append_refuses_a_hole_and_writes_nothing(path: Path) -> None:
    with Journal.create(path, HEADER) as journal:
        with pytest.raises(ValueError, match="record 2 where 1 is next"):
            journal.append(record(2))
        journal.append(record(1))
    assert read_journal(path).entries == [record(1)]


def test_a_record_that_could_not_be_read_again_is_not_written(path: Path) -> None:
    nan = float("nan")
    with Journal.create(path, HEADER) as journal:
        with pytest.raises(ValueError, match="cannot be written"):
            journal.append(Record(seq=1, at=1.0, gen=0, event=TimerFired(at=nan, key="k")))
        journal.append(record(1))
    assert read_journal(path).entries == [record(1)]


def test_text_that_is_not_utf8_does_not_end_the_run(path: Path) -> None:
    with Journal.create(path, HEADER) as journal:
        journal.append(record(1, key="caf\udce9.py"))
    (entry,) = read_journal(path).entries
    assert entry.event.key == "caf\\udce9.py"


def test_a_second_writer_is_refused_and_told_who_has_it(path: Path) -> None:
    code = f"""
import sys
from pathlib import Path
from everstep.journal.writer import Journal
journal, _, _ = Journal.open(Path({str(path)!r}))
print("open", flush=True)
sys.stdin.read()
"""
    written(path, 1)
    assert lock.holder(path.with_name("journal.lock")) is None
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "open\n"
        with pytest.raises(RunLockedError, match=f"process {other.pid} writes its journal"):
            Journal.open(path)
        assert lock.holder(path.with_name("journal.lock")) == other.pid
        assert read_journal(path).entries == [record(1)], "reading needs no lock"
        other.send_signal(signal.SIGKILL)
        other.wait()
        journal, _, _ = Journal.open(path)
        journal.close()


def test_a_full_file_leaves_the_journal_at_the_record_before(path: Path) -> None:
    """RLIMIT_FSIZE cuts a write in the middle, as a full disk does."""
    with Journal.create(path, HEADER) as journal:
        journal.append(record(1))
        before = path.read_bytes()
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        for room in range(len(encode_record(record(2)))):
            resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + room, hard))
            try:
                with pytest.raises(JournalError, match="cannot write"):
                    journal.append(record(2))
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, hard))
            assert path.read_bytes() == before
        journal.append(record(2))
    assert read_journal(path).entries == [record(1), record(2)]


def append_until_refused(journal: Journal) -> None:
    for num in range(1, 1000):
        journal.append(record(num))


@pytest.mark.root
def test_a_full_disk_says_so_and_loses_nothing(tmp_path: Path) -> None:
    mount = tmp_path / "tiny"
    mount.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(mount)], check=False, capture_output=True
    )
    if done.returncode:
        pytest.skip(f"cannot mount a tmpfs: {done.stderr.decode().strip()}")
    try:
        path = mount / "journal.jsonl"
        with Journal.create(path, HEADER) as journal:
            with pytest.raises(JournalError, match=r"disk is full.*Free some space"):
                append_until_refused(journal)
            num = journal.seq
            assert len(read_journal(path).entries) == num
        path.write_bytes(path.read_bytes()[:-10])
        journal, records, torn_bytes = Journal.open(path)
        journal.close()
        assert len(records) == num - 1
        assert torn_bytes > 0
    finally:
        subprocess.run(["umount", str(mount)], check=True)


def test_an_unwritable_directory_says_so(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="No such file"):
        Journal.create(tmp_path / "absent" / "journal.jsonl", HEADER)


def test_a_failed_append_that_could_not_be_undone_is_cut_by_the_next(path: Path) -> None:
    with Journal.create(path, HEADER) as journal:
        journal.append(record(1))
        with path.open("ab") as file:
            file.write(b'{"v":1,"se')
        journal.append(record(2))
    assert read_journal(path).entries == [record(1), record(2)]


def test_a_cursor_gives_each_record_once_as_it_becomes_complete(path: Path) -> None:
    cursor = Cursor(path)
    assert cursor.read() == []
    with Journal.create(path, HEADER) as journal:
        assert cursor.read() == []
        assert cursor.header == HEADER
        journal.append(record(1))
        assert cursor.read() == [record(1)]
        assert cursor.read() == []
        line = encode_record(record(2))
        for end in range(1, len(line)):
            with path.open("r+b") as file:
                file.seek(cursor.offset)
                file.write(line[end - 1 : end])
                file.truncate(cursor.offset + end)
            assert cursor.read() == []
        journal.append(record(2))
        assert cursor.read() == [record(2)]


def test_a_cursor_follows_a_record_that_the_writer_took_back(path: Path) -> None:
    written(path, 2)
    cursor = Cursor(path)
    assert len(cursor.read()) == 2
    os.truncate(path, len(path.read_bytes()) - len(encode_record(record(2))))
    assert cursor.read() == []
    journal, _, _ = Journal.open(path)
    with journal:
        journal.append(record(2, key="another"))
    assert [e.event.key for e in cursor.read()] == ["another"]


def test_a_writer_killed_at_any_moment_leaves_a_journal_that_opens(path: Path) -> None:
    code = f"""
from pathlib import Path
from everstep.journal.writer import Journal
from everstep.model.events import ControllerStarted
from everstep.model.record import Record
journal, records, torn = Journal.open(Path({str(path)!r}))
print("open", flush=True)
seq = len(records)
while True:
    seq += 1
    journal.append(Record(seq=seq, at=1.0, gen=0, event=ControllerStarted(at=1.0, pid=seq, torn_bytes=torn)))
    print(seq, flush=True)
"""
    Journal.create(path, HEADER).close()
    known = 0
    for rounds in range(3):
        with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == "open\n"
            for _ in range(7 * (rounds + 1)):
                known = int(child.stdout.readline())
            child.kill()
            rest = child.stdout.read().splitlines()
        known = int(rest[-1]) if rest and rest[-1].isdigit() else known
        entries = read_journal(path).entries
        assert len(entries) >= known, "an acknowledged record is missing"
        assert all(isinstance(e.event, ControllerStarted) for e in entries)


def test_the_first_record_is_one_line_that_round_trips(path: Path) -> None:
    line = encode_record(first_record())
    assert msgspec.json.decode(line, type=Record) == first_record()
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
