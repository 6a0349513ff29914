"""The persistent tier: checkpoints in a folder or an object store, readable by torch.distributed.checkpoint.

    storage     files under a root: local folders, and every URL that fsspec knows
    form        what lies there, and how each file says that it is whole
    scanning    which checkpoints are there: quick, no torch
    opening, splitting, streams, sources    a snapshot in memory, as pieces with names
    writing     a node's part; committing: the step becomes visible; retention: old ones go
    metadata    what torch.distributed.checkpoint reads, made without torch
    reading     into the objects of a State; resharding: with another number of ranks or layout
    striking    a step is not to be restored, and why
    verifying   is every byte right; exporting: to safetensors, torch.save or a checkpoint without us

`python -m everstep.checkpoint.persist write|commit|strike` is what the agent starts (`__main__`). Nothing here decides
when to write or which step to restore: that is `core`.
"""

from everstep.checkpoint.persist.read.verifying import Problem, verify
from everstep.checkpoint.persist.store.scanning import Scanned, scan, scan_all

__all__ = ["Problem", "Scanned", "scan", "scan_all", "verify"]
