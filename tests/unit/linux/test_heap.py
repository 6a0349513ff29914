"""What a process of ours keeps of memory that its threads have freed. In a process of its own: it is set once."""

import subprocess
import sys

PROGRAM = """
import re, sys, threading
from everstep.linux import heap

if sys.argv[1] == "little":
    heap.keep_little()

def held_kib():
    return int(re.search(r"Pss_Anon:\\s+(\\d+)", open("/proc/self/smaps_rollup").read())[1])

def work():
    mine = bytes(2000)  # it has its area now, and all others have theirs
    all_have.wait()
    with in_turn:
        pieces = [bytes(70_000 + 37 * number) for number in range(200)]
        stays.append([bytes(2000) for _ in range(200)])
        del pieces

all_have, in_turn = threading.Barrier(12), threading.Lock()
before, stays = held_kib(), []
for _ in range(3):
    threads = [threading.Thread(target=work) for _ in range(12)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
print(held_kib() - before)
"""


def kept_kib(mode: str) -> int:
    done = subprocess.run([sys.executable, "-c", PROGRAM, mode], capture_output=True, text=True, check=True, timeout=60)
    return int(done.stdout)


def test_threads_that_are_over_leave_little_behind():
    stays_kib = 3 * 12 * 200 * 2
    assert kept_kib("little") - stays_kib < 0.6 * (kept_kib("as it comes") - stays_kib)
