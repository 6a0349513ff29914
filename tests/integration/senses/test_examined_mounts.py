"""A node's own test and a file system that is full: somebody else's says nothing of the machine."""

import json
import shutil
import subprocess
import sys

import pytest

EXAMINED = """
import json, os, subprocess, sys
from everstep.model.facts import ExamKind
from everstep.preflight.examination import request, self_test
folder, where = sys.argv[1:]
subprocess.run(["mount", "--make-rprivate", "/"], check=True)
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], check=True)
with open(folder + "/filled", "wb") as file:
    file.write(bytes(1 << 20))
os.chdir(where)
said = self_test.examine(request.Request(exam="i1/1", kind=ExamKind.SELF, group=("n0",), position=0, limit_s=60.0))
print(json.dumps([said.passed, said.why]))
"""


def examined(folder, where) -> tuple[bool, str]:
    if shutil.which("unshare") is None:
        pytest.skip("no unshare")
    command = ["unshare", "-m", sys.executable, "-c", EXAMINED, str(folder), str(where)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if "not permitted" in done.stderr:
        pytest.skip(f"namespaces are not allowed here: {done.stderr.strip()[-200:]}")
    assert done.returncode == 0, done.stderr
    passed, why = json.loads(done.stdout.splitlines()[-1])
    return passed, why


def test_a_full_file_system_counts_only_where_the_job_has_files_on_it(tmp_path):
    folder = tmp_path / "full"
    folder.mkdir()
    passed, why = examined(folder, tmp_path)
    assert str(folder) not in why
    passed, why = examined(folder, folder)
    assert not passed
    assert f"storage.{folder}.used_ratio is 1.0" in why
