"""Where traces are written: a directory that strangers may have filled, sometimes by root, for somebody who is not."""

import os
from pathlib import Path

import pytest

from everstep.agent.tracing import files
from everstep.agent.tracing.files import TooLargeError, encoded, remove, write_new
from everstep.report.now.trace import Slice, Trace, Track

OWNER = 4321
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


def trace(*slices: Slice) -> Trace:
    track = Track(name="t", slices=slices)
    return Trace(run="r", rank=0, pid=7, generation=0, begin=100.0, end=110.0, tracks=[track])


def test_a_file_is_private_and_new(tmp_path: Path) -> None:
    path = write_new(tmp_path, "a.json", b"{}")
    assert path.read_bytes() == b"{}"
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    with pytest.raises(FileExistsError):
        write_new(tmp_path, "a.json", b"other")
    assert path.read_bytes() == b"{}"


def test_a_file_that_cannot_be_written_whole_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "_give_to_owner", full)
    (tmp_path / "traces").mkdir()
    with pytest.raises(OSError, match="No space"):
        write_new(tmp_path, "a.json", b"{}")
    assert list((tmp_path / "traces").iterdir()) == []


def test_no_link_is_followed(tmp_path: Path) -> None:
    victim, run_dir = tmp_path / "victim", tmp_path / "run"
    victim.write_text("mine")
    (run_dir / "traces").mkdir(parents=True)
    (run_dir / "traces" / "a.json").symlink_to(victim)
    with pytest.raises(FileExistsError):
        write_new(run_dir, "a.json", b"{}")
    other = tmp_path / "other"
    other.mkdir()
    (other / "traces").symlink_to(run_dir / "traces")
    with pytest.raises(OSError, match=r"Not a directory|Too many levels"):
        write_new(other, "b.json", b"{}")
    remove(other, "a.json")
    assert victim.read_text() == "mine"
    assert (run_dir / "traces" / "a.json").is_symlink()


@needs_root
def test_what_root_writes_belongs_to_the_owner_of_the_run(tmp_path: Path) -> None:
    os.chown(tmp_path, OWNER, OWNER)
    path = write_new(tmp_path, "a.json", b"{}")
    assert (path.stat().st_uid, path.parent.stat().st_uid) == (OWNER, OWNER)


@needs_root
def test_a_directory_of_a_stranger_is_not_written_to(tmp_path: Path) -> None:
    os.chown(tmp_path, OWNER, OWNER)
    (tmp_path / "traces").mkdir()
    os.chown(tmp_path / "traces", OWNER + 1, OWNER + 1)
    with pytest.raises(PermissionError):
        write_new(tmp_path, "a.json", b"{}")


def test_what_is_too_large_is_cut_and_counted(tmp_path: Path) -> None:
    slices = [Slice(f"step {n}", 100 + n / 1000, 100 + n / 1000) for n in range(5000)]
    assert b'"left_out":0' in encoded(trace(*slices))
    data = encoded(trace(*slices), 50_000)
    assert 20_000 < len(data) <= 50_000
    assert b'"left_out":0' not in data
    with pytest.raises(TooLargeError):
        encoded(trace(*slices), 100)


def test_names_that_are_not_text_are_written_out() -> None:
    assert rb"\\udcff" in encoded(trace(Slice("read \udcff", 101, 102)))
