"""Where a version runs: its program and its environment, in the folder in which the user's program runs."""

import sys
from pathlib import Path

import pytest

from everstep.agent.versions.placing import place
from everstep.model.spec import Launch, RunSpec
from everstep.model.versions import Version
from everstep.worker.process import relocation

V1 = Version(id="v1", code="/run/code/abc", root="/home/anna/job")


def test_without_a_version_nothing_is_changed():
    spec = RunSpec(program="train.py", args=("1",), cwd="/home/anna/job")
    placed = place(spec, None, {"A": "1"})
    assert (placed.program, placed.args, placed.env, placed.moved) == ("train.py", ("1",), {"A": "1"}, None)


@pytest.mark.parametrize(
    ("cwd", "program", "placed"),
    [
        ("/home/anna/job", "train.py", "/run/code/abc/train.py"),
        ("/home/anna", "job/src/train.py", "/run/code/abc/src/train.py"),
        ("/tmp", "/home/anna/job/train.py", "/run/code/abc/train.py"),
        ("/home/anna/job/src", "../train.py", "/run/code/abc/train.py"),
        ("/home/anna", "job2/train.py", "/home/anna/job2/train.py"),  # a neighbour whose name begins alike
    ],
)
def test_a_script_is_taken_from_the_copy(cwd: str, program: str, placed: str):
    assert place(RunSpec(program=program, cwd=cwd), V1, {}).program == placed


def test_arguments_environment_and_path():
    version = Version(id="v2", code=V1.code, root=V1.root, args=("--lr", "1"), env={"B": "2"})
    spec = RunSpec(program="pkg.train", args=("old",), cwd=V1.root, launch=Launch.MODULE)
    placed = place(spec, version, {"A": "1", "PYTHONPATH": "src:/home/anna/job:/opt/lib"})
    assert (placed.program, placed.args) == ("pkg.train", ("--lr", "1"))
    assert placed.env["PYTHONPATH"] == "/run/code/abc/src:/run/code/abc:/opt/lib"
    assert (placed.env["A"], placed.env["B"], placed.env["EVERSTEP_VERSION"]) == ("1", "2", "v2")


def test_only_settings_leave_the_code_where_it_is():
    placed = place(RunSpec(program="train.py", cwd="/j"), Version(id="v1", env={"B": "2"}), {})
    assert (placed.program, placed.moved) == ("train.py", None)


def test_a_version_with_other_variables_is_placed_otherwise_so_that_no_older_twin_serves_it():
    spec, env = RunSpec(program="train.py", cwd="/j"), {"OMP_NUM_THREADS": "1"}
    given = Version(id="v1", env={"OMP_NUM_THREADS": "4"})
    assert place(spec, given, env) != place(spec, None, env)
    assert place(spec, given, env) == place(spec, given, dict(env))


def test_imports_are_looked_up_in_the_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    root, copy, link = tmp_path / "job", tmp_path / "copy", tmp_path / "link"
    root.mkdir()
    link.symlink_to(root)
    monkeypatch.setattr(sys, "path", [str(root), str(link / "src"), str(tmp_path / "job2"), ""])
    monkeypatch.setattr(relocation, "_moved", None)
    relocation.set_up([str(root), str(copy)])
    assert sys.path == [str(copy), str(copy / "src"), str(tmp_path / "job2"), ""]
