"""Memory of snapshots in large pages, as far as this kernel gives them."""

import os
from pathlib import Path

import pytest

from everstep.checkpoint import arena as arenas
from everstep.checkpoint import large_pages

SIZE = 40 << 20


@pytest.fixture
def fd():
    fd = os.memfd_create("large-pages-test")
    os.ftruncate(fd, SIZE)
    yield fd
    os.close(fd)


def num_maps() -> int:
    return len(Path("/proc/self/maps").read_text().splitlines())


def large_bytes(fd: int) -> int:
    """Of this file in large pages, by a mapping of it in this process."""
    memory, begin = large_pages.map_whole(fd, SIZE)
    for at in range(begin, begin + SIZE, 4096):
        memory[at]
    text = Path("/proc/self/smaps").read_text()
    memory.close()
    part = text[text.index("large-pages-test") :]
    found = [int(line.split()[1]) << 10 for line in part.splitlines() if line.startswith("ShmemPmdMapped:")]
    return found[0]


def collapses() -> bool:
    fd = os.memfd_create("large-pages-probe")
    os.ftruncate(fd, SIZE)
    os.posix_fallocate(fd, 0, SIZE)
    memory, begin = large_pages.map_whole(fd, SIZE)
    try:
        memory.madvise(25, begin, SIZE)
        return True
    except OSError:
        return False
    finally:
        memory.close()
        os.close(fd)


def test_all_of_it_is_there(fd):
    large_pages.allocate(fd, SIZE)
    assert os.fstat(fd).st_blocks * 512 == SIZE


def test_only_what_is_asked_for_is_there(fd):
    large_pages.allocate(fd, 20 << 20)
    assert os.fstat(fd).st_blocks * 512 == 20 << 20
    large_pages.allocate(fd, SIZE)
    assert os.fstat(fd).st_blocks * 512 == SIZE


@pytest.mark.skipif(not collapses(), reason="this kernel gives no large pages")
def test_it_comes_in_large_pages(fd, monkeypatch):
    monkeypatch.setattr(large_pages, "_GRACE_S", 60.0)
    large_pages.allocate(fd, SIZE)
    assert large_bytes(fd) >= SIZE / 2


def test_large_pages_that_take_long_are_not_waited_for(fd, monkeypatch):
    monkeypatch.setattr(large_pages, "_GRACE_S", -1e9)
    monkeypatch.setattr(large_pages, "_PIECE_BYTES", 4 << 20)
    large_pages.allocate(fd, SIZE)
    assert os.fstat(fd).st_blocks * 512 == SIZE
    assert large_bytes(fd) <= 4 << 20


@pytest.mark.parametrize("align", [large_pages.PAGE_BYTES, 1 << 32])
def test_it_is_mapped_at_an_address_that_suits_and_unmapped_again(fd, monkeypatch, align):
    """Also where the kernel does not choose one: at 4 GiB it hardly will."""
    monkeypatch.setattr(large_pages, "PAGE_BYTES", align)
    before = num_maps()
    memory, begin = large_pages.map_whole(fd, SIZE)
    assert (large_pages._address(memory) + begin) % align == 0
    memory[begin + SIZE - 3 : begin + SIZE] = b"end"
    assert os.pread(fd, 3, SIZE - 3) == b"end"
    os.pwrite(fd, b"begin", 0)
    assert memory[begin : begin + 5] == b"begin"
    memory.close()
    assert num_maps() <= before


def test_an_arena_at_such_an_address_works(monkeypatch):
    monkeypatch.setattr(large_pages, "PAGE_BYTES", 1 << 32)
    fd = arenas.create(SIZE, rank=0, world_size=1)
    arena = arenas.Arena(fd)
    index = arena.begin(5, 0)
    assert index is not None
    arena.buffer(index)[:4] = b"abcd"
    snapshot = arena.publish(4, 2, 0)
    assert arena.seal(snapshot)
    arena.populate()
    assert arenas.verify(fd, arenas.inspect(fd).snapshots[0]) == ""
    assert 5 in arenas.held_steps(fd)
    arena.close()
    os.close(fd)


def test_a_file_that_may_not_be_that_large_is_refused():
    fd = os.memfd_create("large-pages-test", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, SIZE)
    os.close(fd)
    with pytest.raises(OSError):
        large_pages.allocate(fd, SIZE)
