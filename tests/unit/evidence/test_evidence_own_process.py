"""A stopped rank whose stack cannot be had is not taken for its data loader, whose stack can."""

import json

import pytest

from everstep.controller.diagnosing import diagnose_folder


def stack(pid: int, *frames: tuple[str, str, int]) -> dict[str, object]:
    return {
        "pid": pid,
        "thread_name": "MainThread",
        "active": False,
        "owns_gil": False,
        "frames": [{"name": name, "filename": file, "line": line} for name, file, line in frames],
    }


ALL_REDUCE = ("all_reduce", "/x/site-packages/torch/distributed/distributed_c10d.py", 3252)
MAIN = ("main", "/home/u/train.py", 84)
WORKER = (
    ("select", "/usr/lib/python3.11/selectors.py", 415),
    ("_worker_loop", "/x/site-packages/torch/utils/data/_utils/worker.py", 334),
    ("run", "/usr/lib/python3.11/multiprocessing/process.py", 108),
    MAIN,
)


@pytest.mark.parametrize("own_stack_first", [True, False])
def test_the_state_is_the_ranks_own(tmp_path, own_stack_first):
    for rank in range(4):
        own, child = 1000 + rank, 500 + rank  # pids go round: a child's may be the smaller one
        stacks = [stack(own, ALL_REDUCE, MAIN)] if rank != 3 else []
        stacks.insert(len(stacks) if own_stack_first else 0, stack(child, *WORKER))
        envelope = {
            "everstep_evidence": 1,
            "rank": rank,
            "generation": 0,
            "at": 100.0,
            "stacks": stacks,
            "states": [[own, "T" if rank == 3 else "S"], [child, "S"]],
            "unavailable": [],
        }
        (tmp_path / f"rank-{rank}.json").write_text(json.dumps(envelope))
    verdict = diagnose_folder(tmp_path, 4).verdict
    assert (verdict.code, verdict.ranks) == ("ES-H01", (3,)), verdict.sentence


@pytest.mark.parametrize("name", ["join", "BaseProcess.join", "start", "is_alive"])
def test_who_waits_for_a_child_is_no_child(tmp_path, name):
    """And the child that has ended has no stack: the state of the rank is its own all the same."""
    joining = (name, "/usr/lib/python3.11/multiprocessing/process.py", 149)
    for rank in range(3):
        own, child = 1000 + rank, 2000 + rank
        is_stopped = rank == 1
        envelope = {
            "everstep_evidence": 1,
            "rank": rank,
            "generation": 0,
            "at": 100.0,
            "stacks": [stack(own, *((joining, MAIN) if is_stopped else (ALL_REDUCE, MAIN)))],
            "states": [[own, "T"], [child, "Z"]] if is_stopped else [[own, "S"]],
            "unavailable": [],
        }
        (tmp_path / f"rank-{rank}.json").write_text(json.dumps(envelope))
    verdict = diagnose_folder(tmp_path, 3).verdict
    assert (verdict.code, verdict.ranks, verdict.certainty) == ("ES-H01", (1,), "certain"), verdict.sentence
