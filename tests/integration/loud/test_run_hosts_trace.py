"""`everstep trace` for a rank of another host: recorded there, and the file comes to the host that asks."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from real_run import COMMAND
from test_run_hosts import TOKEN, output, until

from everstep.engines.network import NetworkError
from everstep.testing.hosts import Bed, Host

PROGRAM = """
import os, sys, time
import everstep

def waits_on_purpose():
    time.sleep(0.05)

number = 0
while not os.path.exists(sys.argv[1]):
    waits_on_purpose()
    number += 1
    everstep.step(number)
    print(f"step {number} of slot {os.environ['EVERSTEP_SLOT']}", flush=True)
"""


def ask(host: Host, folder: Path, *args: str) -> tuple[int, str, str]:
    out, err = folder / "trace-out", folder / "trace-err"
    with out.open("wb") as out_file, err.open("wb") as err_file:
        command = [sys.executable, "-m", "everstep", "trace", *args]
        code = host.start(command, out=out_file, err=err_file).wait(240)
    return code, out.read_text(), err.read_text()


def test_a_rank_of_another_host_is_traced_there_and_the_file_comes_here(tmp_path: Path, only_namespaces: None):
    try:
        bed = Bed()
    except NetworkError as error:
        pytest.skip(str(error))
    program, done = tmp_path / "train.py", tmp_path / "done"
    program.write_text(PROGRAM)
    with bed:
        hosts = [bed.add(f"h{number}") for number in range(2)]
        shape = ["--nnodes", "2", "--rdzv-endpoint", f"{hosts[0].address}:29400", str(program), str(done)]
        runs: list[subprocess.Popen[bytes]] = []
        for number, host in enumerate(hosts):
            with (tmp_path / f"err-{number}").open("wb") as err:
                runs.append(host.start([*COMMAND, *shape], env={"EVERSTEP_JOIN_TOKEN": TOKEN}, err=err))
        run_dir = hosts[0].folder / "home" / "runs" / "latest"
        until(lambda: all("step 5 of" in output(run_dir, 0, rank) for rank in (0, 1)), tmp_path)
        (theirs,) = {int(path.parent.name[5:]) for path in hosts[1].folder.glob("home/hosts/*/logs/gen-0/*/stdout.log")}
        code, out, err = ask(hosts[0], tmp_path, "rank", str(theirs), "--for", "1s", "--json")
        assert code == 0, out + err
        said = json.loads(out)
        path = Path(said["path"])
        assert re.fullmatch(rf"t\d+-gen-0-rank-{theirs}\.json", path.name)
        assert path.resolve().is_relative_to(run_dir.resolve() / "traces")
        assert path.stat().st_size == said["bytes"]
        tracks = {each["track"]: each for each in said["tracks"]}
        assert tracks["steps"]["is"] == "measured"
        assert tracks["steps"]["events"] >= 5
        assert tracks["stacks"]["is"] == "measured", tracks["stacks"]["why"]
        assert "waits_on_purpose" in path.read_text()
        assert 0.9 <= said["end"] - said["begin"] < 30.0
        code, out, err = ask(hosts[0], tmp_path, "rank", str(theirs), "--for", "500ms", "--out", str(tmp_path / "mine"))
        assert code == 0, out + err
        assert f"rank {theirs}, pid " in out
        assert f"{tmp_path}/mine (" in out
        assert "waits_on_purpose" in (tmp_path / "mine").read_text()
        code, out, err = ask(hosts[0], tmp_path, "rank", "7")
        assert (code, "no rank 7" in err) == (2, True)
        assert all("step" in output(run_dir, 0, rank) for rank in (0, 1))
        code, out, err = ask(hosts[1], tmp_path, "rank", str(theirs))
        assert code == 2
        assert "run this on the first host of that run" in err
        done.touch()
        until(lambda: all(run.poll() is not None for run in runs), tmp_path)
        assert [run.returncode for run in runs] == [0, 0]
