"""What the agent takes for left behind, and ends: never what one of its own threads has started."""

import os
import subprocess
import threading

from everstep.agent.processes.reaping import Reaper
from everstep.linux import proc


def test_what_another_thread_has_started_is_not_left_behind():
    here = subprocess.Popen(["sleep", "100"])
    started: list[subprocess.Popen] = []
    is_there, is_over = threading.Event(), threading.Event()

    def probe() -> None:
        started.append(subprocess.Popen(["sleep", "100"]))
        is_there.set()
        is_over.wait()

    thread = threading.Thread(target=probe)
    thread.start()
    is_there.wait()
    try:
        there = started[0].pid
        assert {here.pid, there} <= set(proc.children(os.getpid()))
        assert here.pid in Reaper().adopted()
        assert there not in Reaper().adopted()
    finally:
        is_over.set()
        thread.join()
        for each in (here, *started):
            each.kill()
            each.wait()
