"""The ranks of a program without us, as forks of one process that has torch: what a run that is hurt must end like.

    python plain_ranks.py NUM_RANKS PROGRAM ARGUMENTS

What rank r prints is in `plain-r` in the current directory.
"""

import os
import runpy
import sys
import traceback
from pathlib import Path

from torch.distributed import TCPStore


def be(rank: int, num_ranks: int, told: int) -> None:
    code = 1
    try:
        port = int(os.read(told, 16))
        with Path(f"plain-{rank}").open("wb") as file:
            os.dup2(file.fileno(), 1)
        given = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": num_ranks, "MASTER_ADDR": "127.0.0.1"}
        given |= {"MASTER_PORT": port, "TORCHELASTIC_USE_AGENT_STORE": True, "TORCHELASTIC_RESTART_COUNT": 0}
        os.environ.update({name: str(value) for name, value in given.items()}, EVERSTEP_GENERATION="0")
        sys.path.insert(0, str(Path(sys.argv[0]).parent))
        # What it made stays until the end. torch 2.13 may wait for ever where DistributedDataParallel goes last: its
        # group of gloo waits for a thread that lets go of an operation, and this one for the interpreter.
        _kept = runpy.run_path(sys.argv[0], run_name="__main__")
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def main() -> int:
    num_ranks = int(sys.argv[1])
    del sys.argv[:2]
    pids, ends = [], []
    for rank in range(num_ranks):
        told, tell = os.pipe()
        ends.append(tell)
        pids.append(os.fork())
        if pids[-1] == 0:
            be(rank, num_ranks, told)
    # After the forks: a child of a process with threads waits for ever for a lock that one of them held.
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    for tell in ends:
        os.write(tell, str(store.port).encode())
    return max(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) != 0 for pid in pids)


if __name__ == "__main__":
    sys.exit(main())
