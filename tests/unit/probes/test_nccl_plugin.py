"""The profiler plug-in, called by a program in C as NCCL calls it: its times come back, and nothing harms it. It has
never run under a real NCCL."""

import os
import platform
import random
import re
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from everstep.agent.watching.rank_ops import Entry, Streams
from everstep.analyzer.collective.folding import Folding
from everstep.probes.nccl import plugin, ring

HOST = Path(__file__).with_name("nccl_host.c")
VERSIONS = (3, 4, 5, 6)


@pytest.fixture(scope="session")
def host(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler (cc) for the program that calls the plug-in")
    if plugin.library() is None:
        pytest.skip(f"the plug-in was not compiled for {platform.machine()}: make nccl-plugin")
    program = tmp_path_factory.mktemp("nccl") / "nccl_host"
    subprocess.run([compiler, "-O1", "-Wall", "-Werror", "-o", program, HOST, "-ldl", "-lpthread"], check=True)
    return program


def played(host: Path, version: int, scenario: str, kept: Path) -> tuple[str, bytes]:
    done = subprocess.run(
        [host, str(plugin.library()), str(version), scenario, kept], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, (done.returncode, done.stderr)
    return done.stdout, kept.read_bytes()


def test_the_libraries_are_those_of_the_sources() -> None:
    assert plugin.RECORD.read_text() == plugin.record(), "make nccl-plugin"
    assert plugin.path_of("x86_64").exists()


def test_the_library_needs_an_old_libc_only() -> None:
    data = plugin.path_of("x86_64").read_bytes()
    needed = {tuple(map(int, found.split(b"."))) for found in re.findall(rb"GLIBC_([\d.]+)", data)}
    assert needed
    assert max(needed) <= (2, 17)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_reader_gives_the_times_back(host: Path, tmp_path: Path, version: int) -> None:
    said, data = played(host, version, "well", tmp_path / "ring")
    told = [line.split() for line in said.splitlines()]
    found = ring.parse(data)
    assert found.lost == {}
    assert found.num_recorded == len(found.ops) == len(told) == 6
    for number, (op, (func, count, took_ns)) in enumerate(zip(found.ops, told, strict=True)):
        assert (op.func, op.ordinal) == (func, number)
        assert op.comm == "abcdef0123456789"
        assert op.is_open == (took_ns == "0")
        if func == "AllReduce":
            assert op.num_bytes == 4 * int(count)
        else:  # one rank's part; of how many ranks there are, version 3 does not tell
            assert op.num_bytes == (4 * int(count) if version > 3 else -1)
        assert op.begin_at is not None
        assert 0.004 < op.begin_at - op.queued_at < 5
        if took_ns == "0":
            assert op.took_s is None
        elif version > 3:
            assert op.took_s == pytest.approx(int(took_ns) / 1e9)
        else:  # by the clock of the thread that noticed: it slept so long
            assert 0.003 * (number + 1) < (op.took_s or 0) < 5


@pytest.mark.parametrize("version", VERSIONS)
def test_malformed_calls_are_counted_and_report_success(host: Path, tmp_path: Path, version: int) -> None:
    _, data = played(host, version, "malformed", tmp_path / "ring")
    found = ring.parse(data)
    assert {"malformed", "unknown", "unmatched"} <= set(found.lost)
    assert found.lost["unmatched"] > 1000
    assert found.ops[-1].took_s is None  # a channel began twice: which time is it?
    assert not found.ops[-1].is_open


@pytest.mark.parametrize("version", VERSIONS)
def test_the_newest_stay_where_there_is_no_room_for_all(host: Path, tmp_path: Path, version: int) -> None:
    _, data = played(host, version, "overflow", tmp_path / "ring")
    found = ring.parse(data)
    assert len(found.ops) == 2048
    assert found.num_recorded == 5000 + 63  # a communicator each, as long as there is room for one
    assert found.lost["homeless"] == 37
    assert found.lost["late"] == 1
    assert found.ops[-64].num_bytes == 4 * 4999


@pytest.mark.parametrize("version", VERSIONS)
def test_threads_do_not_disturb_each_other(host: Path, tmp_path: Path, version: int) -> None:
    _, data = played(host, version, "concurrent", tmp_path / "ring")
    found = ring.parse(data)
    assert found.num_recorded == 16_000
    # A thread that was held up for a whole ring's length costs the newer record of its place, and damages none.
    assert found.lost.get("torn", 0) <= 8
    for op in found.ops:
        thread, number = divmod(op.num_bytes // 4, 100_000)
        assert op.comm == f"{thread + 1:016x}"
        assert op.ordinal == number
        if op.took_s is not None and version > 3:
            assert op.took_s == pytest.approx(10e-9 * (thread + 1))


def _read_while_it_lives(living: subprocess.Popen[str]) -> ring.Ring | None:
    try:
        assert living.stdout is not None
        for line in living.stdout:
            if line == "ready\n":
                break
        return ring.read(living.pid)
    finally:
        living.communicate("", timeout=30)


def test_the_ring_of_a_living_process_is_found(host: Path) -> None:
    living = subprocess.Popen(
        [host, str(plugin.library()), "6", "well"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    found = _read_while_it_lives(living)
    assert found is not None
    assert [op.took_s for op in found.ops[:2]] == [pytest.approx(1e-4), pytest.approx(2e-4)]
    assert ring.read(os.getpid()) is None


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", ["librccl.so.1", "libother.so"])
def test_the_clock_of_rccls_kernels_is_not_taken_for_nanoseconds(
    host: Path, tmp_path: Path, name: str, version: int
) -> None:
    """RCCL calls as NCCL does, with the same layouts, and passes ticks of another clock (100 MHz on an MI300)."""
    compiler = shutil.which("cc")
    assert compiler is not None
    subprocess.run([compiler, "-shared", "-o", tmp_path / name, "-x", "c", "/dev/null"], check=True)
    living = subprocess.Popen(
        [host, str(plugin.library()), str(version), "well"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "LD_PRELOAD": str(tmp_path / name)},
    )
    found = _read_while_it_lives(living)
    assert found is not None
    by_device = name == "libother.so" and version > 3
    for number, op in enumerate(found.ops[:5]):
        assert op.took_s is not None
        # By the device 0.1 ms and so on; the thread that noticed slept for 3 ms and so on between begin and end.
        assert (op.took_s < 0.001) if by_device else (0.003 * (number + 1) < op.took_s < 5)


def test_of_more_channels_than_the_ring_has_room_for_the_time_is_unknown(host: Path, tmp_path: Path) -> None:
    """RCCL uses up to 128, and more in some builds."""
    _, data = played(host, 6, "well", tmp_path / "ring")
    many = bytearray(data)
    many[4096 + 13 * 8 + 2 * 4] = 100
    (first, second, *_) = ring.parse(bytes(many)).ops
    assert (first.took_s, first.is_open) == (None, False), "not waited for"
    assert second.took_s is not None


def test_its_times_stand_in_the_table(host: Path, tmp_path: Path) -> None:
    """Torch's record knows the group, and when the host queued an operation; the plug-in knows what the device did."""
    _, data = played(host, 6, "well", tmp_path / "ring")
    ops = ring.parse(data).ops
    for device in ((), ops):
        streams = Streams()
        streams.begin({1, 2})
        for rank, pid in ((0, 1), (1, 2)):
            entries = [_queued(number, op.queued_at) for number, op in enumerate(ops)]
            streams.take(rank, pid, entries, {}, {}, 512, device)
        folding = Folding()
        folding.add(streams.all(), at=1.0, world_size=2)
        (row,) = (row for row in folding.table().groups[0].rows if (row.op, row.num_bytes) == ("all_reduce", 4096))
        if device:
            assert row.time_s.value == row.transfer_s.value == pytest.approx(1e-4)
            assert row.algbw.value == pytest.approx(4096 / 1e-4)
            assert row.skew_s.value == 0  # both ranks are the same process here
            assert row.num_late == 0
        else:
            assert row.time_s.value is row.skew_s.value is row.num_late is None
            assert "queued" in row.skew_s.why


def _queued(number: int, queued_at: float) -> Entry:
    """As torch records what `nccl_host well` does: all-gathers of four ranks' parts."""
    name, length = ("_all_gather_base", 1024) if number % 2 else ("all_reduce", 1024)
    return Entry(
        record_id=number,
        process_group=("0", "default_pg"),
        profiling_name=f"nccl:{name}",
        collective_seq_id=number + 1,
        time_created_ns=int(queued_at * 1e9) - 100_000,
        input_sizes=[[length * (number + 1)]],
        input_dtypes=["Float"],
        output_sizes=[[length * (number + 1)]],
        output_dtypes=["Float"],
        thread_id="1",
    )


def test_what_is_under_way_on_the_device_is_told_when_it_is_over(host: Path, tmp_path: Path) -> None:
    _, data = played(host, 6, "well", tmp_path / "ring")
    ops = ring.parse(data).ops
    streams = Streams()
    told = []
    for _ in range(2):
        streams.begin({1})
        streams.take(0, 1, [_queued(number, op.queued_at) for number, op in enumerate(ops)], {}, {}, 512, ops)
        (found,) = streams.all()
        told.append([(seq, took_s > 0, number in found.begun) for number, (_, seq, _, took_s) in enumerate(found.ops)])
    assert told == [[(n, True, True) for n in range(1, 6)], [(6, False, False)]]  # once more, then as it is


@pytest.mark.parametrize("seed", range(40))
def test_damage_is_an_error_or_left_out(host: Path, tmp_path: Path, seed: int) -> None:
    _, data = played(host, 6, "well", tmp_path / "ring")
    draw = random.Random(seed)
    damaged = bytearray(data[: draw.choice((0, 7, 100, 4095, 4096, 4300, 5000, len(data)))])
    for _ in range(draw.choice((0, 1, 30, 3000))):
        if damaged:
            place = draw.randrange(min(len(damaged), 5200))
            damaged[place : place + 1] = draw.randbytes(1)
    again = bytes(damaged) if seed % 2 else data[: draw.randrange(len(data))]
    try:
        found = ring.parse(bytes(damaged), again)
    except ring.RingError:
        return
    assert len(found.ops) <= 102_400
    for op in found.ops:
        assert op.took_s is None or 0 < op.took_s <= 86_400
        assert op.num_bytes >= -1


def test_a_record_that_was_overwritten_meanwhile_does_not_count(host: Path, tmp_path: Path) -> None:
    _, data = played(host, 6, "well", tmp_path / "ring")
    later = bytearray(data)
    struct.pack_into("<Q", later, 4096 + 160, 2050)
    found = ring.parse(data, bytes(later))
    assert [op.ordinal for op in found.ops] == [0, 2, 3, 4, 5]
    assert found.lost == {"torn": 1}
