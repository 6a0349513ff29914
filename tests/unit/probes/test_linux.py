"""The one reader of /proc and of InfiniBand ports, whole files, and ties to the parent: on real files and processes."""

import os
import select
import signal
import subprocess
import sys
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.linux import files, infiniband, proc

GONE = 2**22 + 1


def test_a_process_as_the_kernel_tells_it() -> None:
    me = proc.stat(os.getpid())
    assert me is not None
    assert (me.pid, me.parent) == (os.getpid(), os.getppid())
    assert me.cpu_s > 0
    assert me == proc.stat("self")._replace(ticks=me.ticks, state=me.state)
    assert os.getpid() in proc.processes()
    assert os.getpid() in proc.children_by_parent()[os.getppid()]
    assert threading.get_native_id() in proc.threads(os.getpid())
    assert proc.stat(os.getpid(), threading.get_native_id()).state == "R"


def test_what_is_gone_is_not_known_and_never_zero() -> None:
    assert proc.stat(GONE) is None
    assert proc.status(GONE) == {}
    assert proc.sched_ns(GONE) is None
    assert proc.catches(GONE, signal.SIGINT) is None
    assert proc.switches(GONE, GONE) == ()
    assert proc.threads(GONE) == []
    assert proc.read_or_nothing("/proc/no such file") == b""


@pytest.mark.parametrize("name", [b"a", b") R 1 1", b"(x) (y)", b"a b\n", b"\xff\xfe", b""])
def test_a_name_may_hold_anything(name: bytes) -> None:
    found = proc.parse_stat(b"7 (" + name + b") S 3 7 7 0 -1 0 0 0 0 0 40 2 0 0 20 0 1 0 999 1 1\n")
    assert found == proc.Stat(7, name.decode(errors="replace"), "S", 3, 42, 999)


@given(st.binary(max_size=200))
def test_garbage_is_not_a_process(line: bytes) -> None:
    assert proc.parse_stat(line) is None
    proc.parse_sizes(line.decode(errors="replace"))


def test_a_handler_is_seen_and_a_signal_without_one_is_not() -> None:
    assert proc.catches("self", signal.SIGUSR2) is False
    before = signal.signal(signal.SIGUSR2, lambda *_: None)
    try:
        assert proc.catches("self", signal.SIGUSR2) is True
    finally:
        signal.signal(signal.SIGUSR2, before)


def test_a_kernel_that_does_not_count_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    for told, expected in ((b"5 7 1\n", (5, 7)), (b"0 0 0\n", None), (b"", None), (b"1 2\n", None), (b"a b c", None)):
        monkeypatch.setattr(proc, "read", lambda _path, told=told: told)
        assert proc.sched_ns(1) == expected


def test_memory_that_can_be_had() -> None:
    assert 0 < proc.available_bytes() < 1 << 50
    assert proc.parse_sizes("MemAvailable:  12 kB\nHugePages:\nno colon\nx: y\n") == {"MemAvailable": 12}


def test_a_long_file_is_read_whole(tmp_path) -> None:
    path = tmp_path / "long"
    path.write_bytes(b"x" * 300_000)
    assert len(proc.read(str(path))) == 300_000


def test_a_file_is_there_whole_or_not_at_all(tmp_path) -> None:
    path = tmp_path / "a"
    files.write_whole(path, b"one", mode=0o600)
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"one", 0o600)
    files.write_whole(path, b"two", is_synced=True)
    assert path.read_bytes() == b"two"
    assert [each.name for each in tmp_path.iterdir()] == ["a"], "no draft is left"


def test_what_cannot_be_written_leaves_the_old_file_and_no_draft(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "write", full)
    with pytest.raises(OSError, match="No space"):
        files.write_whole(path, b"new")
    monkeypatch.undo()
    assert path.read_bytes() == b"old"
    assert [each.name for each in tmp_path.iterdir()] == ["a"]


def test_a_draft_that_a_stranger_made_a_link_is_not_followed(tmp_path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"mine")
    (tmp_path / f"a.{os.getpid()}.new").symlink_to(victim)
    files.write_whole(tmp_path / "a", b"new")
    assert (victim.read_bytes(), (tmp_path / "a").read_bytes()) == (b"mine", b"new")
    assert not (tmp_path / "a").is_symlink()


def test_ports_and_their_counters(tmp_path) -> None:
    for device, number in (("mlx5_1", "1"), ("mlx5_0", "2")):
        port = tmp_path / device / "ports" / number
        (port / "counters").mkdir(parents=True)
        (port / "hw_counters").mkdir()
        (port / "counters/symbol_error").write_text("12\n")
        (port / "counters/broken").write_text("N/A\n")
        (port / "hw_counters/out_of_sequence").write_text("3\n")
    first, second = infiniband.ports(tmp_path)
    assert (first.name, second.name) == ("mlx5_0/2", "mlx5_1/1")
    assert [first.counter(name) for name in ("symbol_error", "out_of_sequence", "broken", "none")] == [
        12,
        3,
        None,
        None,
    ]
    assert infiniband.ports(tmp_path / "none") == []


TIED = """
import os, signal
from everstep.linux import parent
me = os.getpid()
child = os.fork()
if not child:
    print(os.getpid(), parent.die_with_parent(me), flush=True)
    signal.pause()
os.waitpid(child, 0)
"""


def test_the_signal_comes_when_the_parent_dies() -> None:
    with subprocess.Popen([sys.executable, "-c", TIED], stdout=subprocess.PIPE, text=True) as held:
        pid, is_tied = held.stdout.readline().split()
        assert is_tied == "True"
        fd = os.pidfd_open(int(pid))
        held.kill()
        assert select.select([fd], [], [], 60)[0], "it has ended"
        os.close(fd)


def test_who_is_not_the_parent_is_told_so() -> None:
    code = "from everstep.linux import parent; import os; raise SystemExit(parent.die_with_parent(os.getpid()))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0, "False: nothing would come"


@pytest.mark.parametrize("module", ["everstep.controller", "everstep.agent"])
@pytest.mark.parametrize("named", [("--parent", "1"), ("--parent=1",)])
def test_who_has_lost_its_parent_ends_before_it_imports_anything(module: str, named: tuple[str, ...]) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", module, *named, "--run-dir", "/nonexistent"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert "everstep.linux.parent" in done.stderr
    assert "aiohttp" not in done.stderr
