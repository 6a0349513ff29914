"""A checkpoint is read and written by one process also with a torch whose `load` and `save` cannot be told so."""

import pytest
import torch
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner

from everstep.checkpoint.persist.read import alone


def of_earlier_torch(state_dict, *, checkpoint_id=None, storage_reader=None, planner=None, process_group=None):
    """Of torch 2.6: it asks all ranks of the program's group."""
    raise AssertionError("all ranks are asked")


@pytest.mark.parametrize("is_earlier", [True, False])
def test_nobody_else_is_asked(tmp_path, monkeypatch, is_earlier):
    if is_earlier:
        monkeypatch.setattr(alone, "load", of_earlier_torch)
        monkeypatch.setattr(alone, "save", of_earlier_torch)
    tree = {"weight": torch.arange(6.0), "step": 7}
    alone.save_alone(dict(tree), FileSystemWriter(tmp_path), DefaultSavePlanner())
    found = {"weight": torch.zeros(6), "step": 0}
    alone.load_alone(found, FileSystemReader(tmp_path), DefaultLoadPlanner())
    assert torch.equal(found["weight"], tree["weight"])
    assert found["step"] == 7
