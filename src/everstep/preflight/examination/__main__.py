"""One process of an examination: takes its request, does its part, says what it saw, and ends."""

import os
import sys
from typing import Any

import msgspec

from everstep.model.facts import ExamKind
from everstep.preflight.examination.meeting import Absent, Broken, Meeting, Unreachable, interface
from everstep.preflight.examination.request import Request, Said

_MAX_WHY = 600


def main() -> None:
    """Whatever happens it says something, and what is our own failure is never the node's."""
    request = msgspec.json.decode(sys.argv[1].encode(), type=Request)
    try:
        said = _examine(request)
    except Unreachable as unreachable:
        said = Said(passed=None, why=f"{request.kind}: {unreachable}")
    except Exception as error:
        said = Said(passed=None, why=f"our own examination failed: {type(error).__name__}: {error}")
    _say(said)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # the libraries' own ends wait for peers that may be gone


def _examine(request: Request) -> Said:
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # before CUDA starts: sums in a fixed order
    import torch

    torch.set_num_threads(1)
    if request.kind is ExamKind.SELF:
        from everstep.preflight.examination import self_test

        return self_test.examine(request)
    if request.kind is ExamKind.ALL_TO_ALL and request.world_size == 1:
        return Said(passed=None, why="all-to-all: the node has one rank, and nothing between ranks to examine")
    if request.kind is ExamKind.ALL_GATHER and len(request.group) == 1:
        return Said(passed=None, why="all-gather: there is no neighbour to examine the link to")
    torch.set_deterministic_debug_mode("warn")  # use_deterministic_algorithms imports torch's compiler as well
    torch.backends.cuda.matmul.allow_tf32 = False
    return _together(request, _device(torch, request))


def _device(torch: Any, request: Request) -> Any:  # noqa: ANN401 - the module, and its device
    """A GPU of its own for each rank, where there are so many; else the processor."""
    if torch.cuda.is_available() and torch.cuda.device_count() >= request.num_ranks:
        torch.cuda.set_device(request.local_rank)
        return torch.device("cuda", request.local_rank)
    return torch.device("cpu")


def _together(request: Request, device: Any) -> Said:  # noqa: ANN401
    from everstep.preflight.examination import exchange, repeating

    interface(request.group)
    meeting = Meeting(request)
    try:
        meeting.come()
        is_model = request.kind in (ExamKind.ALIGNMENT, ExamKind.REPLAY)
        meeting.connect(device, repeating.axes(repeating.layout_of(request)) if is_model else {})
        if is_model:
            return repeating.examine(request, meeting, device)
        how = exchange.all_to_all if request.kind is ExamKind.ALL_TO_ALL else exchange.all_gather
        return exchange.examine(request, meeting, device, how)
    except Absent as absent:
        return _of_absent(request, absent.ranks, f"did not come within {absent.waited_s:.1f} s")
    except Broken as broken:
        silent = meeting.silent()
        if silent:
            return _of_absent(request, silent, f"fell silent in the middle ({broken})")
        return _of_broken(request, str(broken))


def _of_absent(request: Request, ranks: set[int], what: str) -> Said:
    """Another node that is not there is to blame; of its own missing processes a node says only that it does not
    know."""
    nodes = request.nodes_of(ranks)
    if request.node in nodes:
        mine = sorted(rank % request.num_ranks for rank in ranks if rank // request.num_ranks == request.position)
        return Said(passed=None, why=f"{request.kind}: process {mine[0]} of this node {what}")
    return Said(passed=False, why=f"{request.kind}: {', '.join(nodes)} {what}", blames=nodes)


def _of_broken(request: Request, why: str) -> Said:
    """Everybody lives and still the exchange broke. Of two nodes each accuses the other: the pairs with others tell."""
    others = tuple(node for node in request.group if node != request.node)
    blames = others if len(others) == 1 else (request.node,) if not others else ()
    sentence = f"{request.kind} between {', '.join(request.group)} broke, and all of them live: {why}"
    return Said(passed=False, why=sentence, blames=blames)


def _say(said: Said) -> None:
    """To the agent where this is a process of one; on standard output in any case."""
    from everstep.worker.link.runtime import current

    said = msgspec.structs.replace(said, why=said.why[:_MAX_WHY])
    runtime = current()
    if runtime is not None:
        runtime.tell({"examined": msgspec.to_builtins(said)})
    print(msgspec.json.encode(said).decode())  # noqa: T201 - the answer


if __name__ == "__main__":
    main()
