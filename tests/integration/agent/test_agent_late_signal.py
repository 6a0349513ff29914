"""A signal that reaches an agent when its work is done, and its process not yet: it ends in order all the same."""

import signal
import subprocess
import sys

import pytest

ENDS = """
import asyncio, os, signal, sys
from everstep.agent.processes.signals import handle

async def run():
    over = asyncio.Event()
    handle(asyncio.get_running_loop(), int(sys.argv[1]), over.set)
    os.kill(os.getpid(), int(sys.argv[1]))
    await over.wait()
    print("over", flush=True)

asyncio.run(run())
os.kill(os.getpid(), int(sys.argv[1]))  # the launcher's, which came late
print("ended", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR2])
def test_a_signal_is_heard_and_one_that_comes_after_the_loop_changes_nothing(number):
    done = subprocess.run([sys.executable, "-c", ENDS, str(int(number))], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "over\nended\n", "")
