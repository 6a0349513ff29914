"""Real faults that `everstep check` must find and name.

A slow disk is a bandwidth and IOPS limit of the block layer (cgroup v1 blkio) on the device under the folder; a slow
network is a token bucket (tc tbf) on one end of a veth pair between two network namespaces; a missing device is an
interface taken out of its namespace; a wrong digest is the arithmetic of another processor generation, which the math
library is told to use. The first three need root.
"""

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from everstep.preflight.result import Judgement, Report, Result

COMMAND = [sys.executable, "-m", "everstep", "check", "--json"]
BLKIO = Path("/sys/fs/cgroup/blkio")
is_root = os.geteuid() == 0


@pytest.fixture
def environment(tmp_path) -> dict[str, str]:
    home = tmp_path / "home"
    return {**os.environ, "EVERSTEP_HOME": str(home), "TMPDIR": str(tmp_path), "EVERSTEP_CHECK_TOKEN": "secret"}


def check(environment, *arguments: str, before: tuple[str, ...] = (), **more) -> tuple[int, Report]:
    done = subprocess.run([*before, *COMMAND, *arguments], env=environment, capture_output=True, timeout=120, **more)
    assert done.stdout, done.stderr.decode()
    return done.returncode, msgspec.json.decode(done.stdout, type=Report)


def bad(report: Report) -> set[str]:
    return {result.name for result in report.results if result.verdict is Judgement.BAD}


@contextlib.contextmanager
def throttled(path: Path) -> Iterator[Path]:
    """A control group whose members write and read 4 MB/s, and 8 times a second, on the disk under `path`."""
    device = path.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    if not (BLKIO / "blkio.throttle.write_bps_device").exists() or not Path(f"/sys/dev/block/{number}").exists():
        pytest.skip("no blkio controller, or no block device under this folder")
    group = BLKIO / f"everstep-test-{os.getpid()}"
    group.mkdir()
    try:
        for way in ("read", "write"):
            (group / f"blkio.throttle.{way}_bps_device").write_text(f"{number} {4 << 20}")
        (group / "blkio.throttle.write_iops_device").write_text(f"{number} 8")
        yield group
    finally:
        group.rmdir()


@pytest.mark.root
@pytest.mark.skipif(not is_root, reason="control groups need root")
@pytest.mark.soak
def test_a_slow_disk_is_named(environment, tmp_path):
    folder = tmp_path / "slow"
    folder.mkdir()
    arguments = ("--only", "disk", "--disk-path", str(folder))
    code, healthy = check(environment, *arguments)
    with throttled(folder) as group:
        inside = ("sh", "-c", f'echo $$ > {group}/cgroup.procs; exec "$@"', "sh")
        slow_code, slow = check(environment, *arguments, before=inside)
    assert (code, bad(healthy)) == (0, set())
    assert slow_code == 1
    assert {f"disk.{folder}.write_bandwidth", f"disk.{folder}.read_bandwidth"} <= bad(slow)
    found = next(result for result in slow.results if result.name == f"disk.{folder}.fsync_p50_s")
    assert found.verdict in (Judgement.WARN, Judgement.BAD)
    assert list(folder.iterdir()) == []


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, timeout=60, capture_output=True)


@pytest.fixture
def two_nodes() -> Iterator[tuple[str, str]]:
    """Two network namespaces with a veth pair between them: 10.77.0.1 and 10.77.0.2."""
    if not is_root or not shutil.which("ip") or not shutil.which("tc"):
        pytest.skip("network namespaces need root, ip and tc")
    names = tuple(f"evt{os.getpid()}{end}" for end in "ab")
    try:
        for name in names:
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        ip("-n", names[0], "link", "add", "ev0", "type", "veth", "peer", "name", "ev0", "netns", names[1])
        for number, name in enumerate(names, start=1):
            ip("-n", name, "addr", "add", f"10.77.0.{number}/24", "dev", "ev0")
            ip("-n", name, "link", "set", "ev0", "up")
        yield names[0], names[1]
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], timeout=60, capture_output=True, check=False)


@contextlib.contextmanager
def serving(environment, space: str) -> Iterator[str]:
    command = ["ip", "netns", "exec", space, *COMMAND[:-1], "--serve", "0", "--host", "10.77.0.2"]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    with process:
        try:
            line = process.stdout.readline()
            yield f"10.77.0.2:{line.split(';')[0].rpartition(':')[2]}"
        finally:
            process.terminate()


@pytest.mark.root
def test_a_rate_limited_interface_is_named(environment, two_nodes):
    here, there = two_nodes
    inside = ("ip", "netns", "exec", here)
    with serving(environment, there) as peer:
        arguments = ("--only", "network,nic", "--peers", peer)
        code, healthy = check(environment, *arguments, before=inside)
        bucket = ("tbf", "rate", "20mbit", "burst", "32kb", "latency", "300ms")
        tc = ["tc", "-n", here, "qdisc", "add", "dev", "ev0", "root", *bucket]
        subprocess.run(tc, check=True, timeout=60)
        slow_code, slow = check(environment, *arguments, before=inside)
    assert (code, bad(healthy)) == (0, set())
    assert slow_code == 1
    found = {result.name: result for result in slow.results}
    send = found[f"network.peer.{peer}.send_bandwidth"]
    assert send.verdict is Judgement.BAD
    assert 0.2e6 < send.value < 20e6 / 8 * 1.5  # what the bucket lets through, as counted by the receiver
    assert found[f"network.peer.{peer}.receive_bandwidth"].verdict is not Judgement.BAD  # only one direction is limited
    assert found["nic.ev0.is_shaped"].verdict is Judgement.WARN


@pytest.mark.root
def test_a_missing_interface_is_named(environment, two_nodes, tmp_path):
    inside = ("ip", "netns", "exec", two_nodes[0])
    baseline = tmp_path / "good.json"
    _, before = check(environment, "--only", "nic", before=inside)
    baseline.write_bytes(msgspec.json.encode(before))
    ip("-n", two_nodes[0], "link", "del", "ev0")
    code, after = check(environment, "--only", "nic", "--baseline", str(baseline), before=inside)
    assert code == 1
    assert bad(after) == {"nic.ev0.present"}
    code, expected = check(environment, "--only", "nic", "--expect", "nic.ev0.present=yes", before=inside)
    assert (code, bad(expected)) == (1, {"nic.ev0.present"})


def test_a_wrong_digest_is_named(environment, tmp_path):
    """Needs a torch that computes with MKL."""
    baseline = tmp_path / "good.json"
    arguments = ("--only", "cpu,software,compute")
    code, right = check(environment, *arguments)
    assert (code, bad(right)) == (0, set())
    baseline.write_bytes(msgspec.json.encode(right))
    other = {**environment, "MKL_CBWR": "COMPATIBLE"}
    code, wrong = check(other, *arguments, "--baseline", str(baseline))
    found = {result.name: result for result in (*right.results, *wrong.results)}
    if found["compute.float32.digest"].value == next(
        r.value for r in right.results if r.name == "compute.float32.digest"
    ):
        pytest.skip("this torch does not listen to MKL_CBWR")
    assert code == 1
    assert "compute.float32.digest" in bad(wrong)
    assert found["compute.float64.exact"].verdict is Judgement.OK  # exact sums have the same bits in any order


def test_one_flipped_bit_is_found_without_any_baseline():
    torch = pytest.importorskip("torch")
    from everstep.preflight.checks.working.arithmetic import filled, is_exact

    left, right = filled(256, 256, "float64", 1), filled(256, 256, "float64", 2)
    result = left @ right
    assert is_exact(left, right, result)
    for row, column, bit in ((0, 0, 52), (17, 200, 30), (255, 255, 63), (100, 3, 62)):
        broken = result.clone()
        cell = broken.view(torch.int64)
        cell[row, column] ^= -(1 << 63) if bit == 63 else 1 << bit
        assert not is_exact(left, right, broken)


def test_what_is_asked_of_gpus_works_on_any_device_of_torch():
    """Two processes on the CPU in the place of two GPUs: the same code, without CUDA."""
    pytest.importorskip("torch")
    code = (
        "import torch, json; from everstep.preflight.checks.working.gpu_compute import on_devices;"
        "from everstep.preflight.settings import SIZES; import msgspec;"
        "sizes = msgspec.structs.replace(SIZES['quick'], matrix=128, copy_bytes=1 << 20);"
        "print(msgspec.json.encode(list(on_devices(['cpu:0', 'cpu:1'], sizes, factor=1))).decode())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=120, check=True)
    found = {result.name: result for result in msgspec.json.decode(done.stdout, type=list[Result])}
    for index in (0, 1):
        for dtype in ("float32", "float64", "bfloat16"):
            assert found[f"gpu_compute.{index}.{dtype}.digest"].verdict is Judgement.OK
            assert found[f"gpu_compute.{index}.{dtype}.speed"].value > 0
        for name in ("memory_copy", "from_host", "to_host"):
            assert found[f"gpu_compute.{index}.{name}.is_equal"].verdict is Judgement.OK
            assert found[f"gpu_compute.{index}.{name}"].value > 0
        memory = found[f"gpu_compute.{index}.memory_wrong_words"]
        assert (memory.value, memory.verdict, memory.how) == (0, Judgement.OK, "6 MiB written and read back")


def test_one_bit_of_memory_that_does_not_hold_is_found():
    torch = pytest.importorskip("torch")
    from everstep.preflight.checks.working.device_memory import wrong_words

    pieces = [torch.zeros(1000, dtype=torch.int64), torch.zeros(77, dtype=torch.int64)]
    assert wrong_words(pieces) == 0
    for place, bit in ((0, 0), (76, 63)):

        def stuck(place=place, bit=bit):
            pieces[1][place] &= ~(1 << bit) if bit < 63 else (1 << 63) - 1

        assert wrong_words(pieces, stuck) == 1, "its word, or its complement, has that bit"
    assert wrong_words(pieces, lambda: pieces[0].copy_(pieces[0].roll(1))) == 2000, "addresses that are mixed up"


def test_a_gpu_without_spare_rows_and_one_that_is_lost_are_named(environment, tmp_path, nvml):
    state = tmp_path / "state"
    environment |= {"LD_LIBRARY_PATH": str(nvml), "FAKE_NVML_STATE": str(state)}
    state.write_text("")
    code, healthy = check(environment, "--only", "gpu", "--expect", "gpu.count=2")
    assert (code, bad(healthy)) == (0, set())
    state.write_text("failed 1\n")
    code, broken = check(environment, "--only", "gpu", "--expect", "gpu.count=8")
    assert code == 1
    assert "gpu.count" in bad(broken)
    assert any(name.endswith(".remap_failure") for name in bad(broken))
    state.write_text("lost 1\n")
    _, lost = check(environment, "--only", "gpu")
    assert bad(lost) == {"gpu.1.present"}
