"""Bit-wise alignment and replay: the same step of the same small model, round after round, compared bit by bit.

The rounds and the replicas of a group are compared here; groups are compared by the requester, with the digest.
"""

import hashlib
import platform

import torch

from everstep.preflight.examination.compare import Compared, compare
from everstep.preflight.examination.layout import Layout, fit
from everstep.preflight.examination.meeting import Meeting
from everstep.preflight.examination.model import Step
from everstep.preflight.examination.request import Request, Said
from everstep.preflight.identity import machine_kind

GROUP_AXES = ("tp", "pp", "dp")


def axes(layout: Layout) -> dict[str, tuple[tuple[int, ...], ...]]:
    """The process groups that a step needs."""
    return {name: layout.lines(name) for name in GROUP_AXES}


def layout_of(request: Request) -> Layout:
    return fit(request.shape, request.world_size)


def examine(request: Request, meeting: Meeting, device: torch.device) -> Said:
    """Raises Broken, Unreachable."""
    layout = layout_of(request)
    step = Step(layout, meeting, device)
    traces = [step.run() for _ in range(request.num_rounds)]
    meeting.tell({"kind": arithmetic_kind(device), "traces": traces})
    words = meeting.hear()
    compared = compare(
        {
            (rank, number, (int(stage), layout.shard(rank))): tuple(trace)
            for rank, word in words.items()
            for number, traces in enumerate(word["traces"])
            for stage, trace in traces.items()
        }
    )
    kinds = {str(word["kind"]) for word in words.values()}
    digest = f"{_did(layout, kinds)}:{compared.digest}"
    return _judged(request, layout, compared, digest, is_of_one_kind=len(kinds) == 1)


def arithmetic_kind(device: torch.device) -> str:
    """Return a digest of what has to be the same for bits to be comparable."""
    what = torch.cuda.get_device_name(device) if device.type == "cuda" else machine_kind()
    capability = torch.backends.cpu.get_cpu_capability()
    return _short("\n".join((torch.__version__, what, capability, platform.machine())))


def _judged(request: Request, layout: Layout, compared: Compared, digest: str, *, is_of_one_kind: bool) -> Said:
    rounds = "1 round" if request.num_rounds == 1 else f"{request.num_rounds} rounds"
    what = f"{request.kind} with {layout.words()} on {', '.join(request.group)}, {rounds}"
    if not compared.num_different:
        alone = "nothing to compare with here" if not compared.num_compared else "all alike"
        return Said(passed=True, why=f"{what}: {alone}; digest {digest}", digest=digest)
    if not is_of_one_kind:
        why = f"{what}: bits differ, and so do the machines or their libraries: that says nothing"
        return Said(passed=None, why=why, digest=digest)
    blames = request.nodes_of(list(compared.culprits))
    whose = f"first on {', '.join(blames)}" if blames else "and it is not known on which of them first"
    differ = f"{compared.num_different} of {compared.num_compared} times other bits than the others"
    return Said(passed=False, why=f"{what}: {differ}, {whose}; digest {digest}", blames=blames, digest=digest)


def _did(layout: Layout, kinds: set[str]) -> str:
    """Return a digest of what was computed, and on what: digests that begin with something else cannot be compared."""
    return _short(" ".join((*sorted(kinds), str(layout.num_stages), str(layout.size("tp")))))


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:4]
