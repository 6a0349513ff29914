"""A rank that lies in every field of what it leaves about a hang: who waits honestly is named with low confidence."""

import json
import random

import msgspec
import pytest
from examples import examples

from everstep.analyzer.hangs.combine import diagnose
from everstep.evidence.assemble import RankFiles, assemble, with_record
from everstep.evidence.decode import decode
from everstep.evidence.sniff import Kind
from everstep.model.verdict import Blame, Confidence

RANKS, LIAR = 4, 2
AT = 1795266600.0
OPS = ["gloo:all_reduce", "gloo:broadcast", "gloo:send 0->2", "gloo:recv 2<-1", "nccl:all_reduce", "", "x" * 300]
STATES = ["scheduled", "started", "completed", "nonsense", None]
ODD = [None, -1, 0, 2**63, 1e308, "7", [], {}, True, [1, 2], "\x1b[2J"]


def entry(seq, state="scheduled", op="gloo:all_reduce"):
    return {
        "record_id": seq, "pg_id": 0, "process_group": ["0", "default_pg"], "collective_seq_id": seq,
        "p2p_seq_id": 0, "op_id": seq, "profiling_name": op, "time_created_ns": int((AT - 60 + seq / 10) * 1e9),
        "input_sizes": [[4]], "input_dtypes": ["Float"], "output_sizes": [[4]], "output_dtypes": ["Float"],
        "state": state, "retired": state == "completed", "time_discovered_started_ns": None,
        "time_discovered_completed_ns": None, "timeout_ms": 1800000, "is_p2p": False,
        "frames": [{"name": "main", "filename": "/u/train.py", "line": 3}],
    }  # fmt: skip


def stack(pid, name="main"):
    frames = [{"name": name, "filename": "/u/train.py", "short_filename": "train.py", "line": 3}]
    return {
        "pid": pid, "thread_id": 1, "thread_name": "MainThread", "os_thread_id": pid, "active": False,
        "owns_gil": False, "frames": frames, "process_info": None,
    }  # fmt: skip


def honest(rank, last=7):
    record = {
        "version": "2.10",
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(range(RANKS)))}},
        "entries": [
            entry(seq, "completed" if seq < last else "scheduled") for seq in range(max(1, last - 4), last + 1)
        ],
    }
    return {
        "everstep_evidence": 1, "rank": rank, "generation": 0, "at": AT, "flight_record": record,
        "stacks": [stack(100 + rank, "all_reduce")], "states": [[100 + rank, "S"]], "phase": "train", "step": 3,
    }  # fmt: skip


def lie(draw):
    """Behind, ahead, or where the others are; then some fields are something else."""
    whole = honest(LIAR, draw.choice([5, 6, 7, 8, 9, 40]))
    for _ in range(draw.randrange(6)):
        at = whole
        while True:
            keys = list(at) if isinstance(at, dict) else list(range(len(at)))
            if not keys:
                break
            key = draw.choice(keys)
            if key in ("everstep_evidence", "rank"):  # the agent writes these, and the name of the file
                break
            if not isinstance(at[key], dict | list) or draw.random() < 0.15:
                likely = {"profiling_name": OPS, "state": STATES, "ranks": ["[0, 1]", "[2]", "[0, 1, 3]", "[9]", "x"]}
                at[key] = draw.choice([*ODD, *likely.get(key, []) * 4, draw.randrange(12)])
                break
            at = at[key]
    if draw.random() < 0.2:
        whole["native"] = [{"pid": 102, "tid": 102, "name": "x", "state": "D", "call": "futex", "waits_in": "y"}]
    if draw.random() < 0.1:
        del whole[draw.choice(["flight_record", "stacks", "states"])]
    return whole


def verdict(lies):
    files = {}
    for rank in range(RANKS):
        said = lies if rank == LIAR else honest(rank)
        files[rank] = RankFiles()
        try:
            for part in decode(json.dumps(said).encode(), Kind.JSON):
                files[rank].add(f"rank-{rank}.json", with_record(part, rank))
        except Exception as error:  # as the reader of folders does
            files[rank].unavailable.append(str(error))
    case, _ = assemble(files, AT)
    return diagnose(msgspec.structs.replace(case, world=tuple(range(RANKS)))).verdict


def test_the_truth_names_the_rank_that_is_behind():
    assert verdict(honest(LIAR, 6)).ranks == (LIAR,)


@pytest.mark.parametrize("seed", range(4))
def test_no_honest_rank_is_blamed_on_a_liars_word_alone(seed):
    draw = random.Random(seed)
    for _ in range(examples(2500) // 2):
        told = lie(draw)
        found = verdict(told)
        if not set(found.ranks) <= {LIAR}:
            assert found.confidence is Confidence.LOW, (found, told)
            assert found.blame not in (Blame.MACHINE, Blame.NETWORK), (found, told)  # nothing else evicts a node
