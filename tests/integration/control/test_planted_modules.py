"""A directory in which somebody else may write, and from which a run is started: none of his modules is imported."""

import os
import subprocess
import sys

import pytest

CODE = "open({!r}, 'a').write(__name__ + chr(10))\nraise ImportError('planted')\n"
OURS = (
    "everstep",
    "aiohttp",
    "msgspec",
    "fsspec",
    "re2",
    "hyperscan",
    "xxhash",
    "rich",
    "torch",
    "sitecustomize",
    "usercustomize",
)


@pytest.mark.parametrize(
    "arguments",
    [
        ("run", "--nproc-per-node", "1", "--run-dir", "run", "--no-python", "sh", "-c", "exit 0"),
        ("check", "--only", "software"),
        ("node", "ls"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_nothing_is_imported_from_the_current_directory(tmp_path, arguments):
    ran, here = tmp_path / "ran", tmp_path / "here"
    here.mkdir()
    for name in (*sys.stdlib_module_names, *OURS):
        (here / f"{name}.py").write_text(CODE.format(str(ran)))
    environ = {**os.environ, "EVERSTEP_HOME": str(tmp_path / "home")}
    command = [sys.executable, "-P", "-m", "everstep.cli.main", *arguments]
    ended = subprocess.run(command, cwd=here, env=environ, capture_output=True, timeout=120, check=False)
    assert not ran.exists(), ran.read_text()
    assert ended.returncode in (0, 1), ended.stderr
    assert arguments[0] != "run" or ended.returncode == 0
