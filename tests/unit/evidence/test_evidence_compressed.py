"""Compressed logs and dumps are read as they are; what is damaged, cut off or endless is said."""

import bz2
import gzip
import io
import json
import lzma
import random
import tarfile

import pytest

from everstep.evidence import unpacking
from everstep.evidence.folder import read_folder
from everstep.evidence.unpacking import HEAD_BYTES, TAIL_BYTES

FAULT = "[rank1]: RuntimeError: CUDA error: an illegal memory access was encountered"
LOG = f"[rank1]: step 7 loss 1.0\n{FAULT}\n".encode()
PACK = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}


@pytest.mark.parametrize("suffix", PACK)
def test_a_compressed_log_is_read(tmp_path, suffix):
    (tmp_path / f"job.log.{suffix}").write_bytes(PACK[suffix](LOG))
    folder = read_folder(tmp_path, 1.8e9)
    assert [known.code for known in folder.known] == ["ES-CU04"]
    assert not folder.unreadable
    assert not folder.notes


@pytest.mark.parametrize("suffix", PACK)
def test_a_compressed_dump_is_read(tmp_path, suffix):
    record = {"version": "2.5", "entries": [], "pg_config": {}}
    for rank in (0, 1):
        (tmp_path / f"fr-rank-{rank}.json.{suffix}").write_bytes(PACK[suffix](json.dumps(record).encode()))
    folder = read_folder(tmp_path, 1.8e9)
    assert [rank.rank for rank in folder.case.ranks] == [0, 1]
    assert not folder.unreadable


@pytest.mark.parametrize("suffix", PACK)
def test_what_comes_before_the_damage_counts(tmp_path, suffix):
    noise = random.Random(3).randbytes(300_000).hex().encode()
    packed = PACK[suffix](LOG + noise + b"\n")
    (tmp_path / f"job.log.{suffix}").write_bytes(packed[: len(packed) * 2 // 3])
    folder = read_folder(tmp_path, 1.8e9)
    if suffix == "bz2":  # its blocks are large: nothing of a cut one can be read
        assert folder.unreadable or folder.notes
        return
    assert [known.code for known in folder.known] == ["ES-CU04"]
    assert any("was not read to its end" in note for note in folder.notes), folder.notes


@pytest.mark.parametrize("suffix", ["gz", "xz"])
@pytest.mark.parametrize("num_steps", [1_000, 20_000])
def test_the_last_lines_before_the_damage_count(tmp_path, suffix, num_steps):
    """Those say how it ended."""
    numbers = random.Random(3)
    text = "".join(f"step {step} loss {numbers.random()} lr {numbers.random()}\n" for step in range(num_steps))
    packed = PACK[suffix](text.encode())
    (tmp_path / f"rank-1.log.{suffix}").write_bytes(packed[: len(packed) // 2])
    (rank,) = read_folder(tmp_path, 1.8e9).case.ranks
    assert rank.last_step is not None
    assert 0.4 * num_steps < rank.last_step < 0.6 * num_steps


def test_garbage_behind_a_whole_log_costs_nothing_of_it(tmp_path):
    (tmp_path / "job.log.gz").write_bytes(gzip.compress(LOG) + b"garbage" * 100)
    folder = read_folder(tmp_path, 1.8e9)
    assert [known.code for known in folder.known] == ["ES-CU04"]
    assert any("it is damaged" in note for note in folder.notes)


@pytest.mark.parametrize("suffix", PACK)
@pytest.mark.parametrize("num", [2, 5, 12, 20])
def test_a_file_of_which_hardly_anything_is_left_is_said(tmp_path, suffix, num):
    (tmp_path / f"job.log.{suffix}").write_bytes(PACK[suffix](LOG)[:num])
    folder = read_folder(tmp_path, 1.8e9)
    assert folder.unreadable or folder.notes or not folder.known


def test_head_and_tail_of_a_large_one(tmp_path):
    middle = b"a line of no meaning\n" * ((HEAD_BYTES + TAIL_BYTES) // 10)
    (tmp_path / "job.log.gz").write_bytes(gzip.compress(b"[rank0]: step 1 loss 2.0\n" + middle + LOG))
    folder = read_folder(tmp_path, 1.8e9)
    assert [known.code for known in folder.known] == ["ES-CU04"]
    assert any("KiB in the middle were not read" in note for note in folder.notes)


def test_a_bomb_is_read_as_far_as_the_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(unpacking, "MAX_UNPACKED_BYTES", 8 << 20)
    (tmp_path / "job.log.gz").write_bytes(gzip.compress(LOG + b"a line\n" * (8 << 20)))
    folder = read_folder(tmp_path, 1.8e9)
    assert any("GiB when unpacked" in note for note in folder.notes)
    assert [(rank.rank, rank.last_step) for rank in folder.case.ranks] == [(1, 7)], "its head was read"


def test_a_dump_that_is_too_large_when_unpacked_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("everstep.evidence.folder.MAX_DUMP_BYTES", 1 << 20)
    (tmp_path / "fr-rank-0.json.gz").write_bytes(gzip.compress(b'{"version": "2.5", "x": "' + b"y" * (2 << 20) + b'"}'))
    (unreadable,) = read_folder(tmp_path, 1.8e9).unreadable
    assert "more than 1 MiB when unpacked" in unreadable.why


def test_archives_and_what_is_compressed_twice_are_named(tmp_path):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        info = tarfile.TarInfo("job.log")
        info.size = len(LOG)
        tar.addfile(info, io.BytesIO(LOG))
    (tmp_path / "logs.tar.gz").write_bytes(out.getvalue())
    (tmp_path / "job.log.gz").write_bytes(gzip.compress(gzip.compress(LOG)))
    (tmp_path / "job.zst").write_bytes(b"\x28\xb5\x2f\xfd" + b"\0" * 20)
    whys = {each.file: each.why for each in read_folder(tmp_path, 1.8e9).unreadable}
    assert set(whys) == {"logs.tar.gz", "job.log.gz", "job.zst"}
    assert whys["job.zst"] == "compressed file: unpack it first"
    assert whys["job.log.gz"] == "compressed file within a compressed file: unpack it first"
    assert whys["logs.tar.gz"] == "archive within a compressed file: unpack it first"
