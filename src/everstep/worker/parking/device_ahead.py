"""A CUDA context made ahead, in a process that waits to continue as its rank: only on request.

It takes some tenths of a second from a rank's return. It costs some hundred megabytes of the device for as long as the
process waits, and a program that continues from it cannot choose its devices (CUDA_VISIBLE_DEVICES) itself any more.
The process is never forked again: with a device open it is no twin.
"""

import sys
from collections.abc import Mapping
from typing import Any

SWITCH = "EVERSTEP_CUDA_AHEAD"


def begin(env: Mapping[str, str], *, has_torch: bool) -> None:
    """Make the context of the rank whose environment this is, on the device of its local rank. Raises whatever torch
    raises.

    `has_torch`: all of torch's module has run; an early twin waits just after that, where the interpreter still counts
    it as being imported."""
    torch: Any = sys.modules.get("torch")
    if env.get(SWITCH) != "on" or torch is None or not has_torch:
        return
    device = int(env.get("LOCAL_RANK", "0"))
    if device >= torch.cuda.device_count():
        return
    # For the length of the block: which device is the current one stays the program's business.
    with torch.cuda.device(device):
        some = torch.ones(8, 8, device=f"cuda:{device}")
        (some @ some).sum().item()
