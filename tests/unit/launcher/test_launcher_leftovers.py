"""How a process that a rank left running is named."""

import subprocess
import time

from everstep.launcher.leftovers import describe
from everstep.linux import proc


def test_a_process_without_a_command_line_has_the_kernels_name_for_it():
    """A process that has ended and was not waited for has none."""
    child = subprocess.Popen(["/bin/true"])
    try:
        deadline = time.monotonic() + 60
        while (found := proc.stat(child.pid)) is not None and found.state != "Z":
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert proc.read(f"/proc/{child.pid}/cmdline") == b""
        assert f"process {child.pid} (true)" in describe(child.pid)
    finally:
        child.wait()
