"""`.metadata` made without torch is what torch would have made."""

import pickle
import subprocess
import sys

import torch
from torch.distributed.checkpoint.filesystem import CURRENT_DCP_VERSION, _StorageInfo
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)

from everstep.checkpoint.packing import _DTYPES
from everstep.checkpoint.persist.form import form
from everstep.checkpoint.persist.form.metadata import merge, metadata_bytes
from everstep.checkpoint.persist.form.paths import set_in, typed_path


def piece(total, offsets, sizes):
    return form.Piece(0, 8, total, "ab" * 16, 30, 40, 50, offsets, sizes)


def part(rank, tensors, named, values=()):
    return form.RankPart(
        step=1,
        generation=0,
        rank=rank,
        world_size=2,
        length=9,
        skeleton=form.Skeleton(1, 1, "", "", 0),
        tensors=tensors,
        named=named,
        values=values,
        objects={},
    )


def shards():
    """Two ranks with two rows each, one of them in two pieces; a value that differs and one that does not."""
    path = ("optimizer", "state", 0, "exp_avg")
    one = form.Tensor("torch.bfloat16", (2, 3), (piece("a", (0, 0), (1, 3)), piece("b", (1, 0), (1, 3))))
    two = form.Tensor("torch.bfloat16", (2, 3), (piece("c", (0, 0), (2, 3)),))
    values = [
        (form.Value(("at", (0,), "x"), f"v{rank}", "cd" * 16, 1, 2), form.Value(("lr",), "same", "cd" * 16, 3, 4))
        for rank in range(2)
    ]
    return [
        part(0, (one,), (form.Named(path, 0, (4, 3), (0, 0), True),), values[0]),
        part(1, (two,), (form.Named(path, 0, (4, 3), (2, 0), True),), values[1]),
    ]


def test_it_equals_what_torch_makes_of_the_same():
    merged = merge(shards(), lambda name: f"../objects/{name}")
    made = pickle.loads(metadata_bytes(merged))
    name, size = "optimizer.state.0.exp_avg", torch.Size
    chunks = [ChunkStorageMetadata(size((row, 0)), size((rows, 3))) for row, rows in ((0, 1), (1, 1), (2, 2))]
    expected = Metadata(
        state_dict_metadata={
            "at.0.x": BytesStorageMetadata(),
            "lr": BytesStorageMetadata(),
            name: TensorStorageMetadata(TensorProperties(dtype=torch.bfloat16), size((4, 3)), chunks),
        },
        planner_data={name: ("optimizer", "state", "0", "exp_avg"), "at.0.x": ("at", 0, "x"), "lr": ("lr",)},
        storage_data={
            **{
                MetadataIndex(name, chunk.offsets, number): _StorageInfo(f"../objects/{'ab' * 16}", 30, 40)
                for number, chunk in enumerate(chunks)
            },
            MetadataIndex("at.0.x"): _StorageInfo(f"../objects/{'cd' * 16}", 1, 2),
            MetadataIndex("lr"): _StorageInfo(f"../objects/{'cd' * 16}", 3, 4),
        },
        storage_meta=StorageMeta(),
        version=CURRENT_DCP_VERSION,
    )
    assert made == expected
    assert list(made.state_dict_metadata) == list(expected.state_dict_metadata)
    assert [index.index for index in made.storage_data] == [0, 1, None, None, 2]
    assert merged.unequal == {"at.0.x"}
    assert pickle.loads(pickle.dumps(made)) == expected  # nothing of ours is in it


def test_every_dtype_that_a_snapshot_may_hold_has_its_name():
    for name, dtype in _DTYPES.items():
        tensor = form.Tensor(name, (1,), (piece("a", (0,), (1,)),))
        merged = merge([part(0, (tensor,), (form.Named(("t",), 0, (1,), (0,), False),))], str)
        assert pickle.loads(metadata_bytes(merged)).state_dict_metadata["t"].properties.dtype is dtype


def test_numbers_and_indices_of_paths_are_told_apart():
    made = pickle.loads(metadata_bytes(merge(shards(), str)))
    assert typed_path(made, "optimizer.state.0.exp_avg") == ("optimizer", "state", 0, "exp_avg")
    assert typed_path(made, "at.0.x") == ("at", (0,), "x")
    tree = {}
    for name in made.state_dict_metadata:
        set_in(tree, typed_path(made, name), name)
    assert tree == {
        "optimizer": {"state": {0: {"exp_avg": "optimizer.state.0.exp_avg"}}},
        "at": [{"x": "at.0.x"}],
        "lr": "lr",
    }


def test_a_commit_needs_no_torch():
    code = "import sys, everstep.checkpoint.persist.store.committing; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
