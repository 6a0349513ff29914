"""Log files of our own processes have a limit, belong to one user, and follow no link."""

import logging

import pytest

from everstep.linux import logs
from everstep.linux.logs import PrivateLog


def test_a_log_of_ours_does_not_grow_whoever_makes_it_speak(tmp_path, monkeypatch):
    monkeypatch.setattr(logs, "MAX_LOG_BYTES", 10_000)
    handler = PrivateLog(tmp_path / "launcher.log")
    for number in range(1000):
        handler.emit(logging.LogRecord("a", logging.INFO, "f", 1, "stranger %d \udc80 " + "x" * 100, (number,), None))
    handler.close()
    files = sorted(tmp_path.iterdir())
    assert sum(path.stat().st_size for path in files) <= 20_000
    assert all(path.stat().st_mode & 0o077 == 0 for path in files)
    assert "stranger 999" in (tmp_path / "launcher.log").read_text()


def test_a_log_is_not_written_through_a_link(tmp_path):
    (tmp_path / "launcher.log").symlink_to(tmp_path / "other")
    with pytest.raises(OSError):
        PrivateLog(tmp_path / "launcher.log")
    assert not (tmp_path / "other").exists()
