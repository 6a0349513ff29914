"""The node's own test: what its kernel counts against it, and whether its processor, memory and GPUs compute right.

Some seconds at most. Wrong arithmetic is found without another machine: the float64 product has an exact answer, and
the others must have the same bits each time and on each GPU.
"""

import contextlib
import json
import os
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
import torch

from everstep.preflight import light
from everstep.preflight.checks.working.arithmetic import DTYPES, copies, products
from everstep.preflight.examination.request import Request, Said
from everstep.preflight.result import Judgement, Result

_SIDE, _REPEATS = 384, 3
_COPY_BYTES = 64 << 20
_MAX_NAMED = 3


def examine(request: Request) -> Said:
    inspected = light.inspect(_before(request.inspection))
    own = _own_devices(request.inspection)
    found = [one for one in inspected if one.verdict is Judgement.BAD and not _is_of_others(one, own)]
    bad = [f"{one.name} is {one.value}: {one.why}" for one in found]
    devices = ["cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))]
    bad += [sentence for device in devices for sentence in _computed(device)]
    if bad:
        more = f"; and {len(bad) - _MAX_NAMED} more" if len(bad) > _MAX_NAMED else ""
        return Said(passed=False, why="; ".join(bad[:_MAX_NAMED]) + more, blames=(request.node,))
    gpus = f" and {len(devices) - 1} GPUs" if len(devices) > 1 else ""
    why = f"{len(inspected)} readings of the kernel, products and copies on the CPU{gpus}: nothing is bad"
    return Said(passed=True, why=why)


def _is_of_others(one: Result, own: frozenset[int]) -> bool:
    """A full file system on which the job has no file. Anybody may fill his own, and the machine is none the worse."""
    is_fullness = one.name.startswith("storage.") and one.name.endswith("used_ratio")
    return is_fullness and not _devices([one.device]) & own


def _own_devices(inspection: str) -> frozenset[int]:
    """Return the devices of the file systems with the program's directory, temporary files, shared memory and the run's
    directory."""
    return _devices([os.curdir, tempfile.gettempdir(), "/dev/shm", str(Path(inspection).parent)])


def _devices(paths: Iterable[str]) -> frozenset[int]:
    found = set()
    for path in paths:
        with contextlib.suppress(OSError):
            found.add(Path(path).stat().st_dev)
    return frozenset(found)


def _before(path: str) -> Sequence[Result]:
    """Counters are judged by how they have grown since; without it by what they are."""
    try:
        return msgspec.convert(json.loads(Path(path).read_bytes()), list[Result]) if path else ()
    except (OSError, ValueError):  # msgspec's errors are ValueErrors
        return ()


def _computed(device: str) -> Iterable[str]:
    """Sentences on what went wrong."""
    try:
        for dtype in DTYPES:
            found = products(dtype, _SIDE, _REPEATS, device)
            if len(set(found["digests"])) > 1:
                yield f"the same {dtype} product on {device} has other bits each time"
            if found["wrong"]:
                yield f"{found['wrong']} of {_REPEATS} float64 products on {device} are wrong"
        if not copies(_COPY_BYTES, 1, device, device)["is_equal"]:
            yield f"a copy in the memory of {device} is not equal"
    except torch.OutOfMemoryError:
        raise  # another process uses it: the device stays unknown
    except RuntimeError as error:
        if not device.startswith("cuda"):
            raise
        yield f"{device}: {str(error).splitlines()[0][:200]}"
