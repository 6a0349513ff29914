"""Writers of the memory of machines that are killed at any moment leave a whole file."""

import contextlib
import signal
import sqlite3
import subprocess
import sys
import time

from everstep.health.rules import HealthEvent, Kind
from everstep.health.store import Store

WRITER = """
import sys
from pathlib import Path
from everstep import health
number = 0
print("go", flush=True)
while True:
    number += 1
    event = health.HealthEvent(host=sys.argv[2], at=float(number), kind=health.Kind.ALERT, why="w" * 300)
    health.record(event, Path(sys.argv[1]))
"""


def test_writers_that_are_killed_leave_a_whole_file(tmp_path):
    path = tmp_path / "nodes.db"
    for round_ in range(4):
        writers = [
            subprocess.Popen([sys.executable, "-c", WRITER, path, f"n{n}"], stdout=subprocess.PIPE) for n in range(2)
        ]
        try:
            for writer in writers:
                assert writer.stdout.readline() == b"go\n"
            time.sleep(0.03 * (round_ + 1))
        finally:
            for writer in writers:
                writer.send_signal(signal.SIGKILL)
                writer.communicate()
        with contextlib.closing(sqlite3.connect(path)) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        Store(path, busy_s=5.0).record(HealthEvent(host="last", at=1e6 + round_, kind=Kind.EVICTION, why="broke"))
    assert len(Store(path).host("last", 2e6).events) == 4
