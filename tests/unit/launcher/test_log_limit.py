"""A log above its limit keeps its beginning and its end, and readers get past the hole."""

import time
from pathlib import Path

import pytest

from everstep.agent.streams.log_limit import limit
from everstep.cli.see.logs import MAX_TAIL_BYTES, read_tail
from everstep.launcher.output.output import OutputTail
from everstep.launcher.output.shown import Shown

MIB = 1 << 20


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "gen-0" / "rank-0" / "stdout.log"
    path.parent.mkdir(parents=True)
    return path


def fill(path: Path, num_mib: int) -> None:
    with path.open("ab") as file:
        for number in range(num_mib):
            line = b"%07d " % number + b"x" * 56 + b"\n"
            file.write(line * (MIB // len(line)) + b"-" * (MIB % len(line) - 1) + b"\n" * (MIB % len(line) > 0))


def holed(path: Path) -> int:
    fill(path, 40)
    given_up = limit(path, limit_bytes=16 * MIB, head_bytes=4 * MIB)
    if not given_up:
        pytest.skip("this file system makes no holes")
    return given_up


def test_the_middle_gives_its_place_back_and_no_offset_changes(log: Path):
    size_before = 40 * MIB
    assert holed(log) == 28 * MIB
    found = log.stat()
    assert found.st_size == size_before
    assert found.st_blocks * 512 <= 13 * MIB
    data = log.read_bytes()
    assert data.startswith(b"0000000 ")
    assert b"0000039 " in data[-MIB:]
    with log.open("ab") as file:
        file.write(b"more\n")
    assert log.stat().st_size == size_before + 5


def test_a_small_log_and_a_published_one_stay_whole(log: Path, tmp_path: Path):
    fill(log, 2)
    assert limit(log, limit_bytes=16 * MIB, head_bytes=4 * MIB) == 0
    target = tmp_path / "published.log"
    fill(target, 40)
    link = log.with_name("stderr.log")
    link.symlink_to(target)
    assert limit(link, limit_bytes=16 * MIB, head_bytes=4 * MIB) == 0


def test_the_terminal_goes_on_behind_the_hole(log: Path):
    holed(log)
    shown = bytearray()
    tail = OutputTail(
        Shown(log_dir=log.parent.parent.parent, nproc_per_node=1, world_size=1, role="r"),
        lambda _, data: shown.extend(data),
    )
    tail.drain()
    assert len(shown) < 13 * MIB
    assert shown.startswith(b"0000000 ")
    assert b"0000039 " in shown[-MIB:]


def test_everstep_logs_reads_the_end_of_it(log: Path):
    holed(log)
    lines, left_out = read_tail(log, 0)
    assert lines[-1].startswith(("0000039 ", "-"))
    assert left_out >= 32 * MIB - 64 * 1024


def test_a_log_without_lines_is_read_in_time_and_space_that_have_a_limit(log: Path):
    with log.open("wb") as file:
        for _ in range(80):
            file.write(b"\r 10%" * (MIB // 5))
    began = time.process_time()
    lines, left_out = read_tail(log, 10)
    assert time.process_time() - began < 5.0
    assert sum(map(len, lines)) <= MAX_TAIL_BYTES + MIB
    assert left_out == log.stat().st_size - len(lines[0])
