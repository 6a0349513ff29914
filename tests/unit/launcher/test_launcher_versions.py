"""Copies of code: what is in them, what stands for what, and which folders are none of code."""

import subprocess
from pathlib import Path

import pytest

from everstep.errors import ConfigError
from everstep.launcher.versions import code_files, versions
from everstep.launcher.versions.versions import copy_folder, copy_for_update, copy_start, plan_start
from everstep.model.spec import Launch, RunSpec


@pytest.fixture
def job(tmp_path: Path) -> Path:
    folder = tmp_path / "job"
    (folder / "pkg").mkdir(parents=True)
    (folder / "train.py").write_text("import pkg.model\n")
    (folder / "pkg" / "model.py").write_text("WIDTH = 4\n")
    return folder


def spec_of(folder: Path, program: str = "train.py", launch: Launch = Launch.SCRIPT) -> RunSpec:
    return RunSpec(program=program, cwd=str(folder), launch=launch)


def files_in(folder: str) -> set[str]:
    return {str(path.relative_to(folder)) for path in Path(folder).rglob("*") if path.is_file()}


def test_a_copy_does_not_change_with_the_original(job: Path, tmp_path: Path):
    copied = copy_folder(job, job, tmp_path / "run")
    (job / "pkg" / "model.py").write_text("WIDTH = 5\n")
    assert (Path(copied.code) / "pkg" / "model.py").read_text() == "WIDTH = 4\n"
    other = copy_folder(job, job, tmp_path / "run")
    assert other.code != copied.code


def test_the_same_content_is_one_folder_wherever_it_came_from(job: Path, tmp_path: Path):
    twin = tmp_path / "twin"
    subprocess.run(["cp", "-r", job, twin], check=True)
    first, second = copy_folder(job, job, tmp_path / "run"), copy_folder(twin, job, tmp_path / "run")
    assert first.code == second.code
    assert [path.name for path in (tmp_path / "run" / "code").iterdir()] == [Path(first.code).name]


def test_caches_environments_repositories_and_runs_are_left_out(job: Path, tmp_path: Path):
    for name in (".git", "__pycache__", "env", "old-run"):
        (job / name).mkdir()
        (job / name / "file.py").write_text("")
    (job / "env" / "pyvenv.cfg").write_text("")
    (job / "old-run" / "journal.jsonl").write_text("")
    run_dir = job / "run"  # within the code itself: the copy must not hold itself
    copied = copy_folder(job, job, run_dir)
    assert files_in(copied.code) == {"train.py", "pkg/model.py"}


def test_large_files_are_linked(job: Path, tmp_path: Path):
    (job / "weights.bin").write_bytes(b"\0" * (versions.LARGE_BYTES + 1))
    copied = copy_folder(job, job, tmp_path / "run")
    link = Path(copied.code) / "weights.bin"
    assert link.is_symlink()
    assert link.resolve() == (job / "weights.bin").resolve()
    assert copied.num_files == 2


def test_a_folder_that_is_none_of_code_is_refused_and_leaves_nothing(
    job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(versions, "MAX_BYTES", 20)
    with pytest.raises(ConfigError, match="is not a directory of code"):
        copy_folder(job, job, tmp_path / "run")
    assert list((tmp_path / "run" / "code").iterdir()) == []


def git(folder: Path, *words: str) -> None:
    subprocess.run(["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b", *words], check=True)


def put(folder: Path, *names: str, size: int = 1) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"#" * size)


def started(folder: Path, run_dir: Path, program: str = "train.py") -> set[str]:
    spec = plan_start(spec_of(folder, program), run_dir)
    assert copy_start(spec) == ""
    return files_in(spec.code_copy)


OUTPUTS = (
    "out/checkpoint-10/model.safetensors", "out/checkpoint-10/config.json", "out/checkpoint-10/args.yaml",
    "logs/train.log", "events.bin", "notes.txt", "outputs/today/settings.yaml", "results.json",
)  # fmt: skip
SECRETS = (".env", ".netrc", "id_rsa", "server.key", "cert.pem", "credentials.json", ".aws/config.toml", "secrets.yaml")
MORE_SECRETS = ("id_ed25519_sk", "id_github", "prod.env", ".env.local", "deploy/ID_RSA", "a.PEM")


def test_hidden_files_and_secrets_are_never_copied(job: Path, tmp_path: Path):
    """Neither when a run starts, tracked or not, nor by an update; a module whose name begins like a key's is code."""
    put(job, *SECRETS, *MORE_SECRETS, "id_mapping.py")
    expected = {"train.py", "pkg/model.py", "id_mapping.py"}
    assert files_in(copy_folder(job, job, tmp_path / "updated").code) == expected
    git(job.parent, "init", "-q", str(job))
    git(job, "add", ".")
    assert started(job, tmp_path / "run") == expected


def test_of_a_repository_what_git_tracks_or_would_and_no_outputs(job: Path, tmp_path: Path):
    git(job.parent, "init", "-q", str(job))
    put(job, *OUTPUTS, *SECRETS, "ignored.py", "vocab.txt", "conf/base.yaml")
    (job / ".gitignore").write_text("ignored.py\n")
    git(job, "add", "train.py", "vocab.txt", "id_rsa", ".env")
    assert started(job, tmp_path / "run") == {"train.py", "pkg/model.py", "vocab.txt", "conf/base.yaml"}


def test_hooks_of_the_repository_do_not_run(job: Path, tmp_path: Path):
    git(job.parent, "init", "-q", str(job))
    hook = tmp_path / "hook.sh"
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    hook.chmod(0o755)
    git(job, "config", "core.fsmonitor", str(hook))
    assert started(job, tmp_path / "run") == {"train.py", "pkg/model.py"}
    assert not (tmp_path / "ran").exists()


def test_without_git_what_the_program_imports_and_settings_beside_it(job: Path, tmp_path: Path):
    put(job, *OUTPUTS, *SECRETS, "other.py", "base.yaml")
    assert started(job, tmp_path / "run") == {"train.py", "pkg/model.py", "base.yaml"}


def test_a_program_that_does_not_compile_somewhere_is_copied_as_far_as_it_is_read(job: Path, tmp_path: Path):
    (job / "pkg" / "model.py").write_text("import pkg.more\nnot python\n")
    assert started(job, tmp_path / "run") == {"train.py", "pkg/model.py"}


def test_large_files_are_data(job: Path, tmp_path: Path):
    git(job.parent, "init", "-q", str(job))
    put(job, "big.py", size=code_files.LARGE_BYTES + 1)
    git(job, "add", "big.py")
    assert started(job, tmp_path / "run") == {"train.py", "pkg/model.py"}


def test_a_repository_that_is_too_large_leaves_what_the_program_imports(
    job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    git(job.parent, "init", "-q", str(job))
    put(job, "a.py", "b.py", "c.py")
    monkeypatch.setattr(code_files, "MAX_FILES", 2)
    assert started(job, tmp_path / "run") == {"train.py", "pkg/model.py"}
    monkeypatch.setattr(code_files, "MAX_FILES", 1)
    spec = plan_start(spec_of(job), tmp_path / "other")
    assert "more than 1 files" in copy_start(spec)
    assert not Path(spec.code_copy).exists()


def test_a_program_in_a_folder_of_its_repository_is_copied_with_it(job: Path, tmp_path: Path):
    git(job.parent, "init", "-q", str(job))
    spec = plan_start(spec_of(job, "pkg/model.py"), tmp_path / "run")
    assert spec.code_root == str(job)
    assert copy_start(spec) == ""
    assert files_in(spec.code_copy) == {"train.py", "pkg/model.py"}


def test_commands_are_not_copied(job: Path, tmp_path: Path):
    spec = spec_of(job, "sh", Launch.COMMAND)
    assert plan_start(spec, tmp_path / "run") == spec


@pytest.mark.parametrize(
    ("cwd", "program", "launch", "root"),
    [
        ("", "train.py", Launch.SCRIPT, ""),
        ("", "pkg/model.py", Launch.SCRIPT, ""),
        ("", "pkg.model", Launch.MODULE, ""),
        ("pkg", "../train.py", Launch.SCRIPT, ""),
    ],
)
def test_a_folder_stands_for_the_one_in_which_the_program_has_the_same_place(
    job: Path, tmp_path: Path, cwd: str, program: str, launch: Launch, root: str
):
    twin = tmp_path / "twin"
    subprocess.run(["cp", "-r", job, twin], check=True)
    copied = copy_for_update(str(twin), spec_of(job / cwd, program, launch), tmp_path / "run")
    assert copied.root == str(job / root).rstrip("/")


def test_a_folder_of_scripts_stands_for_the_folder_of_the_script(job: Path, tmp_path: Path):
    twin = tmp_path / "twin"
    twin.mkdir()
    (twin / "model.py").write_text("")
    copied = copy_for_update(str(twin), spec_of(job, "pkg/model.py"), tmp_path / "run")
    assert copied.root == str(job / "pkg")


def test_what_is_neither_folder_nor_revision_is_refused(job: Path, tmp_path: Path):
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(ConfigError, match=r"looked for train\.py in it"):
        copy_for_update(str(empty), spec_of(job), tmp_path / "run")
    with pytest.raises(ConfigError, match="is not a directory"):
        copy_for_update("main", spec_of(job), tmp_path / "run")
