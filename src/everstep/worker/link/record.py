"""torch's flight record of this process as JSON, of the recorder that the process groups use. For the watch thread.

NCCL has a recorder of its own, in CUDA builds only; gloo's is empty there. Reading NCCL's asks CUDA events, and a CUDA
call of any thread spoils a graph that the program captures at that moment, unless the thread is relaxed first: where
that cannot be done, there is no record, and it is said. Never run on a GPU so far.
"""

import json
import re
import sys
from typing import Any

from everstep.worker.link.groups import groups
from everstep.worker.process.capturing import relax

_NO_GROUPS = re.compile(rb'"pg_config":{"":{"desc":"","name":"","ranks":"\[[0-9, ]*\]"}}')
"""The field that gloo's record has in place of group members: an empty list, with torch 2.15 the ranks of the job."""


def flight_record() -> bytes:
    """Without stacks (those would be symbolised). Raises whatever torch raises, and RuntimeError where this torch
    keeps no record of such groups."""
    module: Any = sys.modules["torch._C._distributed_c10d"]
    of_nccl = getattr(module, "_dump_nccl_trace_json", None)
    if of_nccl is not None and _uses_nccl():
        if not relax():
            raise RuntimeError("NCCL's record cannot be read without harm to a graph that is being captured")
        data = of_nccl(True, False)
    else:
        of_all = getattr(module, "_dump_fr_trace_json", None)
        if of_all is None:
            version = getattr(sys.modules["torch"], "__version__", "")
            raise RuntimeError(f"torch {version} keeps no flight record without NCCL")
        data = of_all(True, False)
    return with_groups(data if isinstance(data, bytes) else data.encode())


def with_groups(record: bytes) -> bytes:
    """The record with groups added in NCCL's form where it lists none. Without them it is unknown which ranks a
    collective waits for."""
    if not _NO_GROUPS.search(record):
        return record
    config = {
        name: {"desc": title, "name": name, "ranks": str(ranks)}
        for name, title, ranks in groups(smaller_than_job=False)
    }
    said = b'"pg_config":' + json.dumps(config).encode()
    return _NO_GROUPS.sub(lambda _: said, record, count=1) if config else record


def _uses_nccl() -> bool:
    module: Any = sys.modules.get("torch.distributed.distributed_c10d")
    try:
        return any("nccl" in str(backend[0]).lower() for backend in module._world.pg_map.values())
    except Exception:
        return False
