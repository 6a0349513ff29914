"""Identifiers. NewTypes so that a rank is never passed where a generation is meant."""

from typing import NewType

RunId = NewType("RunId", str)
"""The thing the user wants finished; one id for its whole life (TORCHELASTIC_RUN_ID)."""

NodeId = NewType("NodeId", str)
"""One agent's life on one machine. Unique for ever: a replacement gets a new one."""

Rank = NewType("Rank", int)
"""Global rank, as torch means it. Slot-stable: slot s owns ranks s*nproc .. s*nproc+nproc-1."""

Generation = NewType("Generation", int)
"""One formation of the worker group. Only grows; it is the fencing token."""

Slot = NewType("Slot", int)
"""A logical node position (torchrun's GROUP_RANK) that owns a fixed rank range."""

IncidentId = NewType("IncidentId", str)
"""i1, i2, ... in the order in which they were opened in this run."""

NO_GENERATION = Generation(-1)
"""Before the first formation."""
