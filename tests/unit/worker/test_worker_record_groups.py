"""gloo's flight record does not say who is in which group; the watch thread does."""

import json
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist

from everstep.analyzer.reading.flight import normalise

PROGRAM = """
import sys, torch, torch.distributed as dist
from everstep.worker.link.record import flight_record
rank, path = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", store=dist.FileStore(path, 3), rank=rank, world_size=3)
pair, all_again, _ = dist.new_group([0, 2], group_desc="mesh_tp"), dist.new_group([0, 1, 2]), dist.new_group([1])
if rank != 1:
    dist.all_reduce(torch.ones(8), group=pair)
dist.barrier()
if rank == 0:
    sys.stdout.buffer.write(flight_record())
dist.barrier()
"""


HAS_RECORD = hasattr(torch._C._distributed_c10d, "_dump_fr_trace_json")


@pytest.mark.slow
@pytest.mark.skipif(not HAS_RECORD, reason="this torch keeps no record of gloo")
def test_the_record_of_a_rank_names_the_members_of_its_groups(tmp_path):
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(rank), str(tmp_path / "store")],
            stdout=subprocess.PIPE,
            env={"TORCH_FR_BUFFER_SIZE": "100", "PATH": ""},
        )
        for rank in range(3)
    ]
    try:
        out = ranks[0].communicate(timeout=120)[0]
        assert [rank.wait(60) for rank in ranks] == [0, 0, 0]
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()
    record = normalise(json.loads(out), 0)
    assert record.world == (0, 1, 2)
    found = {group.desc or group.name: group for group in record.groups}
    assert found["mesh_tp"].ranks == (0, 2)
    assert all(group.complete for group in record.groups)
    assert sorted(group.ranks for group in record.groups) == [(0, 1, 2), (0, 1, 2), (0, 2)]
    assert found["mesh_tp"].kind == "tp"


def test_a_process_without_groups_has_the_record_as_torch_makes_it():
    from everstep.worker.link import record

    assert not dist.is_initialized()
    text = b'{"entries":[],' + GROUPLESS + b"}"
    assert record.with_groups(text) == text


GROUPLESS = b'"pg_config":{"":{"desc":"","name":"","ranks":"[]"}}'


@pytest.mark.parametrize("ranks", [b"[]", b"[0]", b"[0, 1]"])
def test_a_record_without_the_names_of_groups_gets_them(monkeypatch, ranks):
    """With torch 2.15 it has the ranks of the job, still without names."""
    from everstep.worker.link import record

    monkeypatch.setattr(record, "groups", lambda *, smaller_than_job: [("1", "mesh_tp", [0, 1])])
    made = record.with_groups(b'{"entries":[],' + GROUPLESS.replace(b"[]", ranks) + b"}")
    assert json.loads(made)["pg_config"] == {"1": {"desc": "mesh_tp", "name": "1", "ranks": "[0, 1]"}}


def test_a_torch_that_keeps_no_record_of_gloo_is_named(monkeypatch):
    from everstep.worker.link import record

    monkeypatch.delattr(torch._C._distributed_c10d, "_dump_fr_trace_json", raising=False)
    with pytest.raises(
        RuntimeError, match=f"torch {torch.__version__.split('+')[0]}.* keeps no flight record without NCCL"
    ):
        record.flight_record()
