"""One program that hangs once, 30 steps after its beginning, and trains on after it was started again.

    everstep run --nproc-per-node 3 certain_script.py KIND plain|state

The culprit is the last rank. Writes the moment at which it does what never ends (see healthy_job.py).
"""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # started by its path: the rooms beside its own
from jobs.certain_kinds import CERTAIN, DOUBTFUL, OTHERS
from jobs.healthy_job import Job, Notes, Wish

HANG_AT = 30


def main() -> None:
    kind, mode = sys.argv[1:3]
    notes = Notes()
    is_first = not (notes.folder / "hung").exists()
    wish = Wish(kind=kind, seconds=0.0, who="some", state=mode == "state")
    job = Job(wish, notes, limit_s=float(os.environ["EVERSTEP_BENCH_LIMIT_S"]))
    done = 0
    for _ in job.steps():
        job.train()
        done += 1
        if done < HANG_AT or not is_first:
            continue
        if job.concerned:
            (notes.folder / "hung").touch()
            notes.write("hang")
            {**CERTAIN, **DOUBTFUL}[kind](job)
        elif kind in OTHERS:
            OTHERS[kind](job)
        is_first = False
    notes.write("done")


if __name__ == "__main__":
    main()
