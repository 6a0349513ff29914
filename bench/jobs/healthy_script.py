"""One healthy irregular program.

    everstep run --nproc-per-node 2 healthy_script.py KIND SECONDS one|some|all plain|state

Must not announce anything to everstep unless the kind is about announcing: what counts is the program of somebody who
never read our documentation.
"""

import sys
import time
from pathlib import Path

import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parents[1]))  # started by its path: the rooms beside its own
import jobs.healthy_computes
import jobs.healthy_waits  # noqa: F401
from jobs.healthy_job import ACTS, SHAPES, Job, Notes, Wish, run_act
from jobs.healthy_shapes import load, prepare


def main() -> None:
    kind, seconds, who, mode = sys.argv[1:5]
    wish = Wish(kind=kind, seconds=float(seconds), who=who, state=mode == "state")
    notes = Notes()
    prepare(wish, notes)
    job = Job(wish, notes)
    load(wish, notes)
    if kind in SHAPES:
        SHAPES[kind](job)
    else:
        run_act(job, ACTS[kind])
    time.sleep(0.5)  # gloo's threads still let go of the last collective; ending at once deadlocks under torchrun, too
    dist.destroy_process_group()
    notes.write("done")


if __name__ == "__main__":
    main()
