"""The page of a run says what `everstep fabric traffic` says, also of what is not known."""

import asyncio
import json
import math
import os
import shutil
import sys
from pathlib import Path

import msgspec
import pytest

from everstep.cli.main import main
from everstep.errors import ConfigError
from everstep.web.traffic import Traffic

sys.path.insert(0, str(Path(__file__).parents[3] / "bench"))
from fabrics.pictured import BEGIN, END, counts, job, network
from fabrics.two_tiers import two_tiers

JOURNAL = (Path(__file__).parents[2] / "golden/journal.jsonl").read_text()
LAB = two_tiers(leaves=2, nics=2, spines=2, bps=100e6)
WAVE = [18.0 + 6 * math.sin(second / 4) for second in range(60)]


@pytest.fixture
def run_dir(tmp_path):
    """Two jobs, and a switch that took one of two equal ways for both."""
    job(tmp_path / "r7f3", JOURNAL, per_s=2)
    job(tmp_path / "other", JOURNAL.replace('"r7f3"', '"r9c1"'), per_s=3, title="dp")
    counted = [
        *counts("leaf0:u0", [3.1 * rate if second not in range(20, 30) else None for second, rate in enumerate(WAVE)]),
        *counts("leaf0:u1", [0.0] * 60),
        *counts("n0:nic0", WAVE),
    ]
    network(tmp_path / "r7f3/fabric", LAB, counted)
    return tmp_path / "r7f3"


def read(run_dir):
    return json.loads(asyncio.run(Traffic().read(run_dir)))


def test_the_page_says_what_the_verb_prints_and_what_both_do_not_know(run_dir, capsys):
    told = read(run_dir)
    assert main(["fabric", "traffic", "--runs", str(run_dir), "--beside", "--json", "--most", "64"]) == 0
    assert json.loads(capsys.readouterr().out) == told
    links = {each["link"]: each for each in told["links"]}
    hot = links["leaf0:u0 > spine0:d0"]
    assert (told["links"][0]["link"], hot["is_hot"], told["num_hot"]) == (hot["link"], True, 1)
    assert sorted(share["job"] for share in hot["jobs"]) == ["r7f3", "r9c1"]
    assert [second["measured_bps"] for second in hot["seconds"][20:30]] == [None] * 10
    assert links["leaf1:u0 > spine0:d1"]["measured_bps"] is None
    assert (told["begin"], told["end"]) == (END - 60, END)
    named = "1 of 16 links hot: leaf0:u0 > spine0:d0 is 74.4% full at most, with r9c1, r7f3 on it"
    assert told["sentence"] == named


def test_nothing_known_is_a_sentence_that_says_what_to_do(run_dir, tmp_path, monkeypatch):
    monkeypatch.setenv("EVERSTEP_HOME", str(tmp_path / "home"))
    shutil.rmtree(run_dir / "fabric")
    with pytest.raises(ConfigError, match=r"the network is not known: put .* at .*/r7f3/fabric/topology.toml"):
        read(run_dir)
    shutil.copytree(run_dir, tmp_path / "home/unused")
    (tmp_path / "home/fabric").mkdir()
    (tmp_path / "home/fabric/topology.json").write_bytes(msgspec.json.encode(LAB))
    told = read(run_dir)  # one network of all runs
    assert {each["measured_bps"] for each in told["links"]} == {None}
    assert {share["job"] for each in told["links"] for share in each["jobs"]} == {"r7f3", "r9c1"}
    (tmp_path / "home/fabric/topology.conf").write_text("SwitchName=a Nodes=n0\n")
    with pytest.raises(ConfigError, match=r"topology.conf, topology.json: which one"):
        read(run_dir)


def test_one_bad_file_or_clock_or_job_hides_nothing_else(run_dir):
    (run_dir / "fabric/n1.jsonl").write_text("rubbish\n")
    os.mkfifo(run_dir / "fabric/n2.jsonl")
    late = msgspec.structs.replace(counts("n3:nic0", [5.0])[0], at=BEGIN + 1e9)
    (run_dir / "fabric/n3.jsonl").write_bytes(msgspec.json.encode(late) + b"\n")
    foreign = counts("n9:eth0", [1.0]) + counts("spine0:swp1", [1.0])
    (run_dir / "fabric/x.jsonl").write_bytes(b"".join(msgspec.json.encode(each) + b"\n" for each in foreign))
    elsewhere = run_dir.parent / "elsewhere"
    job(elsewhere, JOURNAL.replace('"n2"', '"n7"').replace('"trainer-1"', '"far"').replace('"r7f3"', '"r5"'), per_s=1)
    told = read(run_dir)
    assert (told["end"], told["num_hot"]) == (END, 1)
    said = "\n".join(told["missing"])
    for part in (
        "n1.jsonl:1: not a line of `everstep fabric counters`",
        "n2.jsonl: cannot be read: not a regular file",
        "n3: its clock is ahead of the others', at 2058-",
        "n9: it has no cable in",
        "spine0: counts swp1, but its cables are on d0, d1",
        "r5 default_pg: its ranks on far: ",
    ):
        assert part in said, (part, said)


def test_an_answer_is_kept_and_one_process_at_a_time_is_asked(run_dir, monkeypatch):
    asked = []
    begin = asyncio.create_subprocess_exec

    async def counting(*command, **options):
        asked.append(command)
        return await begin(*command, **options)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", counting)

    async def several():
        traffic = Traffic()
        return await asyncio.gather(*(traffic.read(run_dir) for _ in range(4)))

    assert len(set(asyncio.run(several()))) == 1
    assert len(asked) == 1
