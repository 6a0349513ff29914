"""`everstep top` in a real terminal: it shows, answers keys, and leaves the terminal as it found it."""

import os
import pty
import re
import select
import shutil
import subprocess
import sys
import termios
import time
from pathlib import Path

from everstep.journal.beside import paces
from everstep.journal.beside.paces import PaceRound, Paces

JOURNAL = Path(__file__).parents[2] / "golden/journal.jsonl"
LIMIT_S = 60.0


def test_keys_change_the_view_and_the_terminal_is_left_as_it_was(tmp_path):
    run = tmp_path / "r7f3"
    run.mkdir()
    shutil.copy(JOURNAL, run)
    column = PaceRound(at=1.8e9, usual_s=1.0, compute_s=(1.0, 1.61, 1.0, None))
    paces.save(run, Paces(generation=0, num_ranks=4, num_measured=3, order="rank", ranks=(0, 1, 2, 3),
                          nodes=("n0", "n0", "n1", "n1"), wait_s=(0.6, 0.0, 0.6, None), data_s=(None,) * 4,
                          rounds=(column,) * 60))  # fmt: skip
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 80))
    before = termios.tcgetattr(theirs)
    argv = [sys.executable, "-m", "everstep", "top", str(run), "--every", "0.2"]
    process = subprocess.Popen(
        argv, stdin=theirs, stdout=theirs, stderr=subprocess.PIPE, env={**os.environ, "TERM": "xterm"}
    )
    told = b""

    def until(text: bytes) -> None:
        nonlocal told
        deadline = time.monotonic() + LIMIT_S
        while text not in told:
            assert time.monotonic() < deadline, told.decode()
            assert select.select([ours], [], [], LIMIT_S)[0], told.decode()
            told += os.read(ours, 65536)

    try:
        until(b"GAVE UP")
        until(b"phase")
        assert b"\x1b[?1049h" in told
        told = b""
        os.write(ours, b"n")
        until(b"rack")
        told = b""
        os.write(ours, b"r")
        until(b"needs 61% more per step")
        told = b""
        os.write(ours, b"/keyerror\r")
        os.write(ours, b"i")
        until(b"find: keyerror")
        os.write(ours, b"q")
        until(b"\x1b[?1049l")
        assert process.wait(LIMIT_S) == 0
        assert process.stderr is not None
        with process.stderr:
            assert process.stderr.read() == b""
        assert termios.tcgetattr(theirs) == before
        shown = re.sub(rb"\x1b\[[0-9;?]*[A-Za-z]", b"", told)
        assert not re.search(rb"[^\x20-\x7e\x80-\xff\r\n]", shown)
    finally:
        process.kill()
        process.wait()
        os.close(ours)
        os.close(theirs)
