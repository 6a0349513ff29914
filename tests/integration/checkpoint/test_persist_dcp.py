"""What we persist and torch.distributed.checkpoint read and write each other's checkpoints; other numbers of ranks."""

import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from persisting import Kept, snapshot, tensors

from everstep.checkpoint.packing import DamagedError
from everstep.checkpoint.persist import scan
from everstep.checkpoint.persist.read.reading import load_into
from everstep.checkpoint.persist.store.committing import commit
from everstep.checkpoint.persist.write.writing import write
from everstep.errors import SnapshotError


def build():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(40, 300), torch.nn.BatchNorm1d(300), torch.nn.Linear(300, 5))
    optimizer = torch.optim.AdamW(
        [{"params": model[0].parameters(), "lr": 0.1}, {"params": [*model[1].parameters(), *model[2].parameters()]}]
    )
    return model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 2)


def train(model, optimizer, scheduler, steps=2):
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 40)).square().sum().backward()
        optimizer.step()
        scheduler.step()


def persist(root, step, ranks, *, keep=3, generation=0, trusted=False):
    """One write per rank, as if each was a node."""
    fds = [snapshot(p, step, rank=r, world_size=len(ranks), generation=generation) for r, p in enumerate(ranks)]
    try:
        written = [
            write(str(root), step=step, generation=generation, world_size=len(ranks), arenas={rank: fd})
            for rank, fd in enumerate(fds)
        ]
    finally:
        for fd in fds:
            os.close(fd)
    return written, commit(str(root), step=step, world_size=len(ranks), keep=keep, is_trusted=trusted)


def states(*objects):
    return dict(zip(("model", "optimizer", "scheduler"), (one.state_dict() for one in objects), strict=True))


def assert_same(one, other, where=""):
    if isinstance(one, dict):
        assert one.keys() == other.keys(), where
        for key in one:
            assert_same(one[key], other[key], f"{where}.{key}")
    elif isinstance(one, list | tuple):
        assert len(one) == len(other), where
        for index, pair in enumerate(zip(one, other, strict=True)):
            assert_same(*pair, f"{where}.{index}")
    elif isinstance(one, torch.Tensor):
        assert torch.equal(one, other), where
        assert (one.dtype, one.stride()) == (other.dtype, other.stride()), where
    else:
        assert (type(one), one) == (type(other), other), where


def test_the_same_ranks_get_exactly_what_was_in_memory(tmp_path):
    trained = build()
    train(*trained)
    odd = {
        "permuted": torch.randn(2, 8, 5, 5).to(memory_format=torch.channels_last),
        "transposed": torch.randn(30, 20).t(),
        "scalar": torch.tensor(3),
        "none": torch.empty(0, 4),
        "half": torch.randn(3).bfloat16(),
        "bits": torch.tensor([True, False]),
        "nest": [{"a": torch.ones(2)}, (1, torch.zeros(1))],
        3: "a number as key",
        (1, 2): "another one",
    }
    persist(tmp_path, 4, [{**states(*trained), "odd": odd}, {**states(*trained), "odd": 5}])
    model, optimizer, scheduler = build()
    kept = Kept()
    path = scan(str(tmp_path))[0].path
    loaded = load_into(
        path, {"model": model, "optimizer": optimizer, "scheduler": scheduler, "odd": kept}, rank=0, world_size=2
    )
    assert (loaded.step, loaded.random, loaded.resharded) == (4, {"rank": 0}, False)
    assert_same(states(*trained), states(model, optimizer, scheduler))
    assert_same(odd, kept.state)


def test_torch_reads_what_we_wrote_under_the_names_of_its_own(tmp_path):
    trained = build()
    train(*trained)
    persist(tmp_path / "ours", 4, [states(*trained)] * 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save(states(*trained), checkpoint_id=tmp_path / "torch")
        names = [
            set(dcp.FileSystemReader(path).read_metadata().state_dict_metadata)
            for path in (tmp_path / "ours" / "step-0000000004", tmp_path / "torch")
        ]
        assert names[0] - {"everstep.random.rank", "everstep.ddp_order"} == names[1]
        other = build()
        train(*other, steps=1)
        read = states(*other)
        dcp.load(read, checkpoint_id=tmp_path / "ours" / "step-0000000004")
    assert_same(states(*trained)["model"], read["model"])
    assert_same(states(*trained)["optimizer"]["state"], read["optimizer"]["state"])
    assert read["optimizer"]["param_groups"][0]["lr"] == trained[1].param_groups[0]["lr"]


def test_what_torch_wrote_goes_into_fresh_objects(tmp_path):
    trained = build()
    train(*trained)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save(states(*trained), checkpoint_id=tmp_path / "torch")
    model, optimizer, scheduler = build()
    objects = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "position": Kept()}
    loaded = load_into(str(tmp_path / "torch"), objects, rank=1, world_size=3)
    assert_same(states(*trained), states(model, optimizer, scheduler))
    assert loaded.step is None
    assert "position" in loaded.notes[0]
    with pytest.raises(SnapshotError, match=r"none of State's keywords \['net'\]; it has \['model'"):
        load_into(str(tmp_path / "torch"), {"net": model}, rank=0, world_size=1)
    with pytest.raises(SnapshotError, match=r"0\.weight has size \(300, 40\) in the checkpoint and \(2, 2\) here"):
        load_into(str(tmp_path / "torch"), {"model": torch.nn.Sequential(torch.nn.Linear(2, 2))}, rank=0, world_size=1)


@pytest.mark.parametrize("flat", [False, True])
def test_an_optimizer_s_state_by_the_names_of_parameters_becomes_its_own(tmp_path, flat):
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict

    model, optimizer, scheduler = build()
    train(model, optimizer, scheduler)
    options = StateDictOptions(flatten_optimizer_state_dict=flat)
    named = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer, options=options), strict=True))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save(named, checkpoint_id=tmp_path / "torch")
    fresh = build()
    load_into(str(tmp_path / "torch"), {"model": fresh[0], "optimizer": fresh[1]}, rank=0, world_size=1)
    assert_same(model.state_dict(), fresh[0].state_dict())
    assert_same(optimizer.state_dict(), fresh[1].state_dict())


def test_replicas_go_to_another_number_of_ranks(tmp_path):
    trained = build()
    train(*trained)
    persist(tmp_path, 4, [states(*trained)] * 3)
    model, optimizer, scheduler = build()
    objects = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
    loaded = load_into(scan(str(tmp_path))[0].path, objects, rank=4, world_size=5)
    assert (loaded.step, loaded.resharded, loaded.random) == (4, True, None)
    assert_same(states(*trained), states(model, optimizer, scheduler))


def test_what_every_rank_held_differently_is_not_spread(tmp_path):
    persist(tmp_path, 4, [{"table": tensors(rank, (3,)), "position": {"at": rank}} for rank in range(2)])
    path = scan(str(tmp_path))[0].path
    table, position = Kept(tensors(9, (3,))), Kept({"at": 0})
    with pytest.raises(SnapshotError, match=r"written with 2 ranks, this generation has 1.*table\.t0 differed"):
        load_into(path, {"table": table, "position": position}, rank=0, world_size=1)
    load_into(path, {"table": table, "position": position}, rank=1, world_size=2)
    assert_same(table.state, tensors(1, (3,)))
    assert position.state == {"at": 1}
    with pytest.raises(SnapshotError, match=r"new: \['place'\], gone: \['position'\]"):
        load_into(path, {"table": table, "place": position}, rank=1, world_size=2)
    with pytest.raises(SnapshotError, match="is not a checkpoint"):
        load_into(str(tmp_path), {"table": table}, rank=0, world_size=2)
    Path(path, "rank-00000.json").unlink()
    with pytest.raises(DamagedError, match=r"rank-00000\.json: is missing"):
        load_into(path, {"table": table, "position": position}, rank=0, world_size=2)


def test_objects_of_the_program_s_own_classes_come_back_but_have_no_name(tmp_path):
    own = {"plain": 1, "special": Special(7), "nested": (1, [Special(8)])}
    persist(tmp_path, 1, [{"own": own, "model": tensors(0, (5,))}])
    own = Kept()
    load_into(scan(str(tmp_path))[0].path, {"own": own, "model": Kept()}, rank=0, world_size=1)
    assert own.state["special"].number == 7
    assert own.state["nested"][1][0].number == 8
    names = dcp.FileSystemReader(tmp_path / "step-0000000001").read_metadata().state_dict_metadata
    assert "own.plain" in names
    assert not {"own.special", "own.nested"} & set(names)


class Special:
    def __init__(self, number):
        self.number = number


@pytest.mark.timeout(600)
def test_shards_of_fsdp_are_read_by_two_one_and_four_ranks_and_by_torch(tmp_path):
    script = Path(__file__).parents[1] / "persist_ranks.py"
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "root")], capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert sorted(int(line[1]) for line in lines if line[0] == "read_rank") == [1, 2, 2, 4, 4, 4, 4]
    assert len({line[3] for line in lines}) == 1, done.stdout  # the state itself, whole
    assert len({line[4] for line in lines if len(line) > 4}) == 1, done.stdout  # and after one more step


def test_what_is_empty_goes_to_another_number_of_ranks_as_well(tmp_path):
    scaler = torch.amp.GradScaler("cuda", enabled=False)  # its state is {}
    seen = {"seen": {}, "list": [], "deep": {"a": {"b": {}}}, "number": 1}
    model = tensors(0, (3,))
    persist(tmp_path, 1, [{"model": model, "scaler": scaler.state_dict(), "seen": seen}] * 2)
    kept = Kept()
    load_into(
        scan(str(tmp_path))[0].path,
        {"model": Kept(dict(model)), "scaler": scaler, "seen": kept},
        rank=0,
        world_size=1,
    )
    assert kept.state == seen


def test_a_data_position_goes_to_another_number_of_ranks(tmp_path):
    """With the random state of rank 0, and a note that says so; a seed of its own is rank 0's too."""
    from torch.utils.data import DataLoader

    from everstep.integrations.data import ResumableLoader

    def loader():
        return ResumableLoader(DataLoader(list(range(64)), batch_size=4, shuffle=True))

    states, expected = [], []
    for rank in range(2):
        torch.manual_seed(rank)
        data = loader()
        batches = iter(data)
        next(batches)
        states.append({"data": data.state_dict()})
        expected.append(next(batches).tolist())
    persist(tmp_path, 1, states)
    data = loader()
    loaded = load_into(scan(str(tmp_path))[0].path, {"data": data}, rank=0, world_size=1)
    assert "differed from rank to rank" in loaded.notes[0]
    assert next(iter(data)).tolist() == expected[0] != expected[1]
