"""eBPF: what is missing is named, objects are those of their sources, the kernel's answers are read as they are."""

import struct
from pathlib import Path

import pytest

from everstep.analyzer.slowness.off_cpu import UNKNOWN
from everstep.probes.ebpf import programs, sched, support
from everstep.probes.ebpf.libbpf import Library


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


class _Maps:
    """In the place of a loaded object."""

    def __init__(self) -> None:
        self.maps: dict[str, dict[bytes, bytes]] = {"watched": {}, "waits": {}}

    def map(self, name: str, key_bytes: int, value_bytes: int) -> "_Map":
        return _Map(self.maps.setdefault(name, {}))


class _Map:
    def __init__(self, entries: dict[bytes, bytes]) -> None:
        self.put, self.remove, self._entries = entries.__setitem__, entries.pop, entries

    def items(self, most: int) -> list[tuple[bytes, bytes]]:
        return list(self._entries.items())[:most]


@pytest.fixture
def maps(monkeypatch: pytest.MonkeyPatch) -> _Maps:
    made = _Maps()
    monkeypatch.setattr(sched, "Loaded", lambda library, path: made)
    return made


def wait(maps: _Maps, taker: int, ns: int, count: int, name: bytes = b"burn", tid: int = 7) -> None:
    maps.maps["waits"][struct.pack("=III", 7, tid, taker)] = struct.pack("=QQ16s", ns, count, name)


def made_sched() -> sched.Sched:
    return sched.Sched(Library.__new__(Library))


def test_a_look_gives_what_came_since_the_look_before(maps: _Maps) -> None:
    seen = made_sched()
    seen.watch([7])
    wait(maps, 99, 2_000_000_000, 10)
    (thread,) = seen.look()
    assert (thread.pid, thread.takers[0].pid, thread.takers[0].wait_s, thread.takers[0].name) == (7, 99, 2.0, "burn")
    assert seen.look() == ()
    wait(maps, 99, 2_500_000_000, 12)
    assert [(t.wait_s, t.count) for t in seen.look()[0].takers] == [(0.5, 2)]
    wait(maps, 99, 300_000_000, 1)  # evicted from the bounded map, and begun anew
    assert [(t.wait_s, t.count) for t in seen.look()[0].takers] == [(0.3, 1)]


def test_processes_that_are_not_watched_any_more_are_left_out(maps: _Maps) -> None:
    seen = made_sched()
    seen.watch([7, 8])
    seen.watch([8])
    wait(maps, 99, 10**9, 1)
    assert seen.look() == ()
    assert list(maps.maps["watched"]) == [struct.pack("=I", 8)]


def test_many_takers_are_added_up_and_names_are_printable(maps: _Maps) -> None:
    seen = made_sched()
    seen.watch([7])
    for number in range(50):
        wait(maps, 100 + number, 10**9 + number, 1, b"a\x1b[2J\xff\0rest")
    (thread,) = seen.look()
    assert len(thread.takers) == sched.MAX_TAKERS + 1
    assert thread.takers[-1].pid == UNKNOWN
    assert sum(taker.wait_s for taker in thread.takers) == pytest.approx(50.0, rel=1e-3)
    assert all(taker.name.isprintable() for taker in thread.takers)
