"""`everstep ckpt`: what it says of a persistent tier, in its own process and quickly."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from everstep.checkpoint import arena
from everstep.checkpoint.packing import Packer, Target
from everstep.checkpoint.persist.store.committing import commit
from everstep.checkpoint.persist.write.writing import write
from everstep.cli.main import main


@pytest.fixture(scope="module")
def weights():
    return {"0.weight": torch.arange(12.0).reshape(3, 4), "0.bias": torch.ones(3, dtype=torch.bfloat16)}


@pytest.fixture
def root(tmp_path, weights):
    for step in (40, 80):
        packed = Packer().pack({"model": weights, "optimizer": {"state": {0: {"m": torch.zeros(3) + step}}, "lr": 0.1}})
        fd = arena.create(arena.arena_bytes(packed.num_bytes), rank=0, world_size=1)
        mine = arena.Arena(fd)
        mine.publish(*Target(mine.buffer(mine.begin(step, 0))).write(packed))
        write(str(tmp_path / "ck"), step=step, generation=0, world_size=1, arenas={0: fd})
        os.close(fd)
        commit(str(tmp_path / "ck"), step=step, world_size=1, keep=3, is_trusted=step == 40)
    return tmp_path / "ck"


def test_ls_names_what_can_be_restored_and_what_cannot(root, capsys):
    (root / "step-0000000100").mkdir()
    assert main(["ckpt", "ls", "--dir", str(root)]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert rows[0] == ["step", "tier", "age", "size", "where", "state"]
    assert [(row[0], row[1]) for row in rows[1:]] == [("100", "disk"), ("80", "disk"), ("40", "disk")]
    assert [row[-1] for row in rows[1:]] == ["manifest", "whole", "trusted"]
    assert main(["ckpt", "ls", "--dir", str(root), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert [one["step"] for one in said["disk"]["checkpoints"]] == [40, 80]
    assert said["memory"] is None


def test_ls_of_nothing_says_so_and_needs_no_torch(tmp_path):
    code = (
        "import sys; from everstep.cli.main import main;"
        f"code = main(['ckpt', 'ls', '--dir', {str(tmp_path)!r}]);"
        "assert not {'torch', 'fsspec', 'rich', 'aiohttp', 'numpy'} & set(sys.modules); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.split()) == (
        0,
        f"disk no checkpoint that can be restored is in {tmp_path}".split(),
    ), done.stderr


def test_verify_reads_the_newest_or_all_and_its_exit_code_tells(root, capsys):
    assert main(["ckpt", "verify", "--dir", str(root)]) == 0
    assert capsys.readouterr().out == "step 80  every byte is what was written\n"
    part = root / "step-0000000040" / "rank-00000.json"
    part.write_bytes(part.read_bytes().replace(b"40", b"41", 1))
    assert main(["ckpt", "verify", "--dir", str(root), "--all", "--quick"]) == 1
    out = capsys.readouterr().out
    assert "step 80  files and lengths are what was written" in out
    assert "step-0000000040/rank-00000.json: its checksum is not that of the manifest" in out
    assert main(["ckpt", "verify", "--dir", str(root / "step-0000000040"), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)[0]["problems"][0]["name"] == "step-0000000040/rank-00000.json"
    assert main(["ckpt", "verify", "--dir", str(root), "--step", "7"]) == 2
    assert "no step 7" in capsys.readouterr().err


def test_export_in_every_form(root, weights, tmp_path, capsys):
    def export(name, *more):
        assert main(["ckpt", "export", str(tmp_path / name), "--dir", str(root), *more]) == 0
        assert "step " in capsys.readouterr().out
        return tmp_path / name

    found = load_file(export("weights.safetensors"))
    assert found.keys() == weights.keys()
    assert all(torch.equal(found[name], weights[name]) and found[name].dtype == weights[name].dtype for name in weights)
    whole = torch.load(export("all.pt", "--format", "torch", "--step", "40"), weights_only=True)
    assert whole["optimizer"]["state"][0]["m"].tolist() == [40.0] * 3
    assert whole["optimizer"]["lr"] == 0.1
    folder = export("folder", "--format", "dcp")
    assert (folder / ".metadata").exists()
    assert main(["ckpt", "export", str(folder), "--dir", str(root)]) == 2
    assert "is there already" in capsys.readouterr().err
    assert sorted(path.name for path in Path(tmp_path).iterdir() if path.name.startswith(".")) == []


def test_export_of_a_damaged_checkpoint_writes_nothing(root, tmp_path, capsys):
    for path in (root / "objects").rglob("*"):
        if path.is_file():
            path.write_bytes(path.read_bytes()[:-1] + b"\0")
    assert main(["ckpt", "export", str(tmp_path / "out"), "--dir", str(root)]) == 7
    assert "is damaged: objects/" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def exported(tmp_path, state, code=0):
    packed = Packer().pack(state)
    fd = arena.create(arena.arena_bytes(packed.num_bytes), rank=0, world_size=1)
    mine = arena.Arena(fd)
    mine.publish(*Target(mine.buffer(mine.begin(1, 0))).write(packed))
    write(str(tmp_path / "ck"), step=1, generation=0, world_size=1, arenas={0: fd})
    os.close(fd)
    commit(str(tmp_path / "ck"), step=1, world_size=1, keep=3)
    assert main(["ckpt", "export", str(tmp_path / "out"), "--dir", str(tmp_path / "ck")]) == code
    return load_file(tmp_path / "out").keys() if code == 0 else None


X = torch.zeros(3)
OPTIMIZER = {"state": {0: {"exp_avg": X}}, "param_groups": [{"lr": 0.1, "params": [0]}]}


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ({"model0": {"w": X}, "optimizer0": OPTIMIZER}, {"w"}),
        ({"net": {"module.w": X, "module.module.v": X}, "optimizer": OPTIMIZER}, {"w", "module.v"}),
        ({"model": {"module._orig_mod.w": X}}, {"w"}),
        ({"model": {"model.w": X, "w": X, "submodule.v": X}}, {"model.w", "w", "submodule.v"}),
        ({"generator": {"w": X}, "critic": {"module.w": X}, "o": OPTIMIZER}, {"generator.w", "critic.w"}),
    ],
)
def test_safetensors_get_the_weights_under_the_names_of_the_model(tmp_path, state, expected):
    assert exported(tmp_path, state) == expected


def test_what_safetensors_cannot_hold_is_an_error_and_no_file(tmp_path, capsys):
    exported(tmp_path, {"model": {"w": torch.zeros(3, dtype=torch.complex128)}}, code=7)
    assert "safetensors cannot hold it" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
