"""eBPF: what is missing is named, objects are those of their sources, the kernel's answers are read as they are."""

import stat
import struct
from pathlib import Path

import pytest

from everstep.analyzer.slowness.off_cpu import UNKNOWN, Sleep, Taker
from everstep.probes.ebpf import memory, programs, sched, support
from everstep.probes.ebpf.libbpf import Library
from everstep.probes.ebpf.places import Places, full_path


def root(
    tmp_path: Path, *, btf: bool = True, caps: int = 1 << 21, lockdown: str = "", namespace: int = 4026531836
) -> Path:
    (tmp_path / "sys/kernel/security").mkdir(parents=True)
    (tmp_path / "sys/kernel/security/lockdown").write_text(lockdown)
    (tmp_path / "sys/kernel/btf").mkdir()
    if btf:
        (tmp_path / "sys/kernel/btf/vmlinux").write_bytes(b"")
    (tmp_path / "proc/self/ns").mkdir(parents=True)
    (tmp_path / "proc/self/status").write_text(f"Name:\tx\nCapEff:\t{caps:016x}\n")
    (tmp_path / "proc/self/ns/pid").symlink_to(f"pid:[{namespace}]")
    return tmp_path


@pytest.fixture
def _library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctypes.CDLL", lambda name: None)


@pytest.mark.usefixtures("_library")
def test_nothing_is_missing(tmp_path: Path) -> None:
    assert support.why_not(root(tmp_path)) == ""


@pytest.mark.usefixtures("_library")
def test_two_capabilities_are_enough(tmp_path: Path) -> None:
    assert support.why_not(root(tmp_path, caps=1 << 38 | 1 << 39)) == ""


@pytest.mark.usefixtures("_library")
@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"btf": False}, "CONFIG_DEBUG_INFO_BTF"),
        ({"caps": 0}, "CAP_BPF with CAP_PERFMON"),
        ({"caps": 1 << 39}, "CAP_BPF with CAP_PERFMON"),
        ({"lockdown": "none integrity [confidentiality]"}, "lockdown=integrity"),
        ({"namespace": 4026532000}, "hostPID"),
    ],
)
def test_what_is_missing_is_named_with_what_would_allow_it(
    tmp_path: Path, given: dict[str, object], named: str
) -> None:
    why = support.why_not(root(tmp_path, **given))  # type: ignore[arg-type]
    assert named in why
    assert "\n" not in why


def test_without_the_library_its_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr("ctypes.CDLL", missing)
    assert "libbpf1" in support.why_not(root(tmp_path))


def test_each_object_was_compiled_from_the_source_beside_it() -> None:
    assert programs.RECORD.read_text() == programs.record(), "run `make ebpf`"


def test_every_source_has_its_object() -> None:
    sources = {path.name.removesuffix(".bpf.c") for path in programs.RECORD.parent.glob("*.bpf.c")}
    assert sources == set(programs.NAMES)


class _Map:
    """In the place of a kernel's map."""

    def __init__(self) -> None:
        self.entries: dict[bytes, bytes] = {}
        self.put = self.entries.__setitem__

    def drain(self) -> list[tuple[bytes, bytes]]:
        found = list(self.entries.items())
        self.entries.clear()
        return found


class _Maps:
    """In the place of a loaded object."""

    def __init__(self) -> None:
        self.maps: dict[str, _Map] = {}
        self.sizes: dict[str, tuple[int, int]] = {}

    def map(self, name: str, key_bytes: int, value_bytes: int) -> _Map:
        self.sizes[name] = key_bytes, value_bytes
        return self.maps.setdefault(name, _Map())


@pytest.fixture
def maps(monkeypatch: pytest.MonkeyPatch) -> _Maps:
    made = _Maps()
    for module in (sched, memory):
        monkeypatch.setattr(module, "Loaded", lambda library, path: made)
    monkeypatch.setattr("everstep.probes.ebpf.sched.Places", lambda: Places(Path("/none"), "x86_64"))
    return made


def wait(maps: _Maps, taker: int, ns: int, count: int, name: bytes = b"burn", tid: int = 7) -> None:
    maps.maps["waits"].entries[struct.pack("=III", 7, tid, taker)] = struct.pack("=QQ16s", ns, count, name)


def made_sched(*pids: int) -> sched.Sched:
    seen = sched.Sched(Library.__new__(Library))
    seen.watch(pids)
    return seen


def test_a_look_gives_what_came_since_the_look_before(maps: _Maps) -> None:
    seen = made_sched(7)
    wait(maps, 99, 2_000_000_000, 10)
    assert seen.waits() == {(7, 7): (Taker(99, "burn", 2.0, 10),)}
    assert seen.waits() == {}
    wait(maps, 99, 500_000_000, 2)
    assert seen.waits() == {(7, 7): (Taker(99, "burn", 0.5, 2),)}


def test_processes_that_are_not_watched_any_more_are_left_out(maps: _Maps) -> None:
    seen = made_sched(7, 8)
    seen.watch([8])
    wait(maps, 99, 10**9, 1)
    assert seen.waits() == {}
    (bits,) = maps.maps["watched"].entries.values()
    assert [pid for pid in range(1 << 16) if bits[pid // 8] >> pid % 8 & 1] == [8]


def test_processes_whose_pids_share_a_bit_are_told_apart(maps: _Maps) -> None:
    seen = made_sched(7 + (1 << 16))
    (bits,) = maps.maps["watched"].entries.values()
    assert bits[0] == 1 << 7
    wait(maps, 99, 10**9, 1)  # of process 7
    assert seen.waits() == {}


def test_many_takers_are_added_up_and_names_are_printable(maps: _Maps) -> None:
    seen = made_sched(7)
    for number in range(50):
        wait(maps, 100 + number, 10**9 + number, 1, b"a\x1b[2J\xff\0rest")
    (takers,) = seen.waits().values()
    assert len(takers) == sched.MAX_TAKERS + 1
    assert takers[-1].pid == UNKNOWN
    assert sum(taker.wait_s for taker in takers) == pytest.approx(50.0, rel=1e-3)
    assert all(taker.name.isprintable() for taker in takers)


def test_short_waits_are_added_up_without_a_name(maps: _Maps) -> None:
    seen = made_sched(7)
    for number in range(5):
        wait(maps, 100 + number, 900_000, 1)
    assert seen.waits() == {(7, 7): (Taker(UNKNOWN, "", pytest.approx(0.0045), 5),)}
    wait(maps, 100, 900_000, 1)
    assert seen.waits() == {}


def block(maps: _Maps, syscall: int, waker: int = 0, waker_syscall: int = -1, mode: int = stat.S_IFREG) -> None:
    path = b"a.pt".ljust(48, b"\0") + b"run".ljust(48, b"\0") + b"\0" * 96
    frames = [0] * 12
    value = struct.pack(
        "=3Q12QQiIIiII16s192s",
        *(3 * 10**9, 4, 2 * 10**9, *frames, 12, syscall, (8 << 20) | 1, waker, waker_syscall, mode, 2, b"w", path),
    )
    maps.maps["blocks"].entries[struct.pack("=IIQ", 7, 7, syscall)] = value


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"syscall": 74}, Sleep("fsync", 3.0, 4, 2.0, "run/a.pt")),
        ({"syscall": 0}, Sleep("read", 3.0, 4, 2.0, "run/a.pt")),
        ({"syscall": 0, "mode": stat.S_IFIFO}, None),  # a pipe: waiting for what another process says
        ({"syscall": 0, "mode": stat.S_IFSOCK}, None),
        ({"syscall": 0, "mode": stat.S_IFCHR}, None),  # a terminal
        ({"syscall": 230}, Sleep("timer", 3.0, 4, 2.0)),  # clock_nanosleep
        ({"syscall": 232}, None),  # epoll_wait
        ({"syscall": 73, "waker": 9, "waker_syscall": 73}, Sleep("file lock", 3.0, 4, 2.0, "run/a.pt", 9, "w")),
        ({"syscall": 202, "waker": 9, "waker_syscall": 202}, Sleep("futex", 3.0, 4, 2.0, "", 9, "w")),
        ({"syscall": 202, "waker": 9, "waker_syscall": -1}, Sleep("futex", 3.0, 4, 2.0)),  # a timer ended it
    ],
)
def test_sleeps_are_told_by_their_system_call(maps: _Maps, given: dict[str, int], expected: Sleep | None) -> None:
    seen = made_sched(7)
    block(maps, **given)
    assert seen.sleeps() == ({} if expected is None else {(7, 7): [expected]})


def test_the_program_notes_what_is_told_and_nothing_else(maps: _Maps) -> None:
    made_sched(7)
    (told,) = maps.maps["calls"].entries.values()
    of_a_file, by_number, waits_for_others = (0, 74, 72), (2, 202, 35, 230), (7, 23, 45, 232)
    assert {told[number] for number in of_a_file} == {2}
    assert {told[number] for number in by_number} == {1}
    assert {told[number] for number in waits_for_others} == {0}


def test_timers_that_went_off_in_many_processes_are_one_sleep_beside_the_others(maps: _Maps) -> None:
    seen = made_sched(7)
    block(maps, 74)
    (fsync,) = maps.maps["blocks"].entries.values()
    block(maps, 230)
    timer = maps.maps["blocks"].entries[struct.pack("=IIQ", 7, 7, 230)]
    for place in range(40):
        maps.maps["blocks"].entries[struct.pack("=IIQ", 7, 7, 1000 + place)] = timer
        maps.maps["blocks"].entries[struct.pack("=IIQ", 7, 7, 2000 + place)] = fsync
    (listed,) = seen.sleeps().values()
    assert [each.kind for each in listed] == ["fsync"] * sched.MAX_SLEEPS + ["timer"]
    assert listed[-1] == Sleep("timer", pytest.approx(41 * 3.0), 41 * 4, 2.0)


def test_a_fault_is_told_by_the_stack(tmp_path: Path) -> None:
    symbols = tmp_path / "kallsyms"
    symbols.write_text("2000 T schedule\n1000 t filemap_fault\n3000 T do_swap_page.cold\n4000 d jiffies\nnonsense\n")
    places = Places(symbols, "x86_64")
    assert places.kind([0x2010, 0x1010], -1, 0) == "fault"
    assert places.kind([0x3999], -1, 0) == "swap"
    assert places.kind([0x2010], -1, 0) == ""
    assert places.kind([0x10], 232, 0) == ""


def test_hidden_addresses_leave_the_system_call(tmp_path: Path) -> None:
    symbols = tmp_path / "kallsyms"
    symbols.write_text("0000000000000000 t filemap_fault\n0000000000000000 T schedule\n")
    assert Places(symbols, "x86_64").kind([0xFFFFFFFF81000000], 74, 0) == "fsync"
    assert Places(symbols, "x86_64").kind([0xFFFFFFFF81000000], -1, 0) == ""


MOUNTS = """22 1 8:1 / / rw - ext4 /dev/sda1 rw
23 22 8:1 /etc /bound rw - ext4 /dev/sda1 rw
24 22 0:40 / /data rw shared:1 - nfs4 server:/export rw
"""


@pytest.mark.parametrize(
    ("device", "parts", "is_whole", "expected"),
    [
        ((8 << 20) | 1, ["a.pt", "run"], True, "/run/a.pt (/dev/sda1)"),
        ((8 << 20) | 1, ["hosts", "etc"], True, "/bound/hosts (/dev/sda1)"),
        (40, ["a.pt", "run"], True, "/data/run/a.pt (server:/export)"),
        (40, ["a", "b", "c", "d"], False, "/data/.../d/c/b/a (server:/export)"),
        (99, ["a"], True, "a"),
        (40, [], True, ""),
    ],
)
def test_the_path_is_as_the_process_sees_it(
    tmp_path: Path, device: int, parts: list[str], is_whole: bool, expected: str
) -> None:
    (tmp_path / "5").mkdir()
    (tmp_path / "5/mountinfo").write_text(MOUNTS)
    assert full_path(5, device, parts, is_whole=is_whole, proc=tmp_path) == expected


def test_reclaim_is_told_apart_by_whose_limit_it_is(maps: _Maps) -> None:
    seen = memory.Memory(Library.__new__(Library))
    seen.watch([7])
    for whose in (0, 1):
        value = struct.pack("=QQQ", 10**9, 3, 5 * 10**8)
        maps.maps["reclaims"].entries[struct.pack("=III", 7, 7, whose)] = value
    kinds = [(each.kind, each.total_s, each.count, each.most_s) for each in seen.look()[7, 7]]
    assert kinds == [("reclaim", 1.0, 3, 0.5), ("cgroup reclaim", 1.0, 3, 0.5)]
    assert seen.look() == {}
