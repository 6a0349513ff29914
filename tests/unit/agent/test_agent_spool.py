"""What ranks write, from memory to their log files: whole, in bounded memory, and by whoever is there to do it."""

import os
import resource
import subprocess
import time
from pathlib import Path

import pytest

from everstep.agent.streams import log_limit, spooled
from everstep.agent.streams.paths import Paths
from everstep.agent.streams.spool import Spool
from everstep.agent.streams.spooled import Spooled, reopened

MIB = 1 << 20


class Keeps:
    """Takes over what it is given."""

    def __init__(self) -> None:
        self.given: list[Spooled] = []

    def keep_stream(self, fd: int, path: Path) -> None:
        self.given.append(Spooled(reopened(fd, os.O_RDONLY), path))


@pytest.fixture
def keeps() -> Keeps:
    return Keeps()


@pytest.fixture
def spool(keeps: Keeps):
    made = Spool(keeps)
    yield made
    made.close()


def absent(tmp_path: Path) -> Path:
    """A log that cannot be, as long as a file stands where its directory would."""
    (tmp_path / "rank-0").write_text("")
    return tmp_path / "rank-0" / "stdout.log"


def make_room(path: Path) -> None:
    path.parent.unlink()


def used_bytes(fd: int) -> int:
    return os.fstat(fd).st_blocks * 512


def until(condition) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_what_is_written_is_in_the_file_and_not_in_memory(spool: Spool, tmp_path: Path):
    path = tmp_path / "stdout.log"
    fd = spool.open(path)
    assert path.read_bytes() == b""
    for number in range(100):
        os.write(fd, b"%07d\n" % number * 1000)
    spool.drain()
    assert path.read_bytes() == b"".join(b"%07d\n" % number * 1000 for number in range(100))
    assert used_bytes(fd) <= 4096
    assert spool.rest(path, MIB) == b""
    os.close(fd)


def test_a_file_that_cannot_be_written_holds_up_nobody_and_gets_the_end_later(
    spool: Spool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(spooled, "KEPT_BYTES", MIB)
    monkeypatch.setattr(spooled, "PATIENCE_S", 0.0)
    path = absent(tmp_path)
    fd = spool.open(path)
    for number in range(4 * MIB // 8):
        os.write(fd, b"%07d\n" % number)
    until(lambda: used_bytes(fd) <= MIB)
    os.write(fd, b"the last words\n")
    spool.drain()
    assert spool.rest(path, 23) == b"0524287\nthe last words\n"
    make_room(path)
    until(path.exists)
    until(lambda: path.read_bytes().endswith(b"0524287\nthe last words\n"))
    told, kept = path.read_bytes().split(b"\n", 2)[1:]
    assert told.startswith(b"[everstep: ")
    assert int(told.split()[1]) + len(kept) == 4 * MIB + len(b"the last words\n")
    assert len(kept) >= MIB // 2
    os.close(fd)


def test_a_file_without_room_says_that_its_rank_writes(keeps: Keeps, tmp_path: Path):
    """Its time is a sign of life, for who judges hangs."""
    path, memory = tmp_path / "stdout.log", os.memfd_create("everstep-test")
    stream = Spooled(reopened(memory, os.O_RDONLY), path)
    stream.begin()
    os.write(memory, b"first\n")
    assert stream.copy()
    os.utime(path, (1, 1))
    os.write(memory, b"second\n")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(b"first\n"), before[1]))
    try:
        assert not stream.copy()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert path.read_bytes() == b"first\n"
    assert path.stat().st_mtime > 1
    assert stream.copy()
    assert path.read_bytes() == b"first\nsecond\n"
    stream.close()
    os.close(memory)


def test_who_takes_over_goes_on_where_it_was_left(keeps: Keeps, tmp_path: Path):
    path = tmp_path / "stdout.log"
    spool = Spool(keeps)
    fd = spool.open(path)
    os.write(fd, b"a line\n" * 1000)
    spool.close()
    os.write(fd, b"\0and another\n")
    (other,) = keeps.given
    other.resume()
    assert other.copy()
    assert path.read_bytes() == b"a line\n" * 1000 + b"and another\n", "leading zeros look like what was taken"
    other.close()
    os.close(fd)


def test_a_stream_is_let_go_when_nobody_can_write_to_it(spool: Spool, tmp_path: Path):
    fd = spool.open(tmp_path / "stdout.log")
    with subprocess.Popen(["sh", "-c", "read x; echo late"], stdin=subprocess.PIPE, stdout=fd) as child:
        os.close(fd)
        time.sleep(1.2)
        assert len(spool._streams) == 1
        child.communicate(b"\n")
    until(lambda: not spool._streams)
    assert (tmp_path / "stdout.log").read_text() == "late\n"


def test_a_stream_that_its_program_empties_goes_on(spool: Spool, tmp_path: Path):
    path = tmp_path / "stdout.log"
    fd = spool.open(path)
    os.write(fd, b"a long line\n")
    spool.drain()
    subprocess.run(["sh", "-c", "echo x > /dev/stdout"], stdout=fd, check=True)
    spool.drain()
    assert path.read_bytes() == b"a long line\nx\n"
    os.close(fd)


def test_a_log_stays_below_its_limit(spool: Spool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(log_limit.limit, "__defaults__", (16 * MIB, 4 * MIB))
    path = tmp_path / "stdout.log"
    fd = spool.open(path)
    for _ in range(64):
        os.write(fd, b"x" * MIB)
        spool.drain()
    assert path.stat().st_size == 64 * MIB
    assert path.stat().st_blocks * 512 < 32 * MIB
    os.close(fd)


def test_where_no_directory_can_be_made_a_rank_writes_all_the_same(spool: Spool, tmp_path: Path):
    logs = tmp_path / "logs"
    logs.write_text("")
    paths = Paths.prepare(logs=logs, errors=tmp_path / "errors", generation=1, rank=3)
    fd = spool.open(paths.stdout)
    os.write(fd, b"a line\n")
    spool.drain()
    logs.unlink()
    until(paths.stdout.exists)
    until(lambda: paths.stdout.read_bytes() == b"a line\n")
    os.close(fd)
