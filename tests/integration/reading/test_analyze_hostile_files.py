"""`everstep analyze` on files that are cut, empty, huge, hostile, of another version or of another generation.

Each must give a verdict and a reason per file, never a traceback, and never run or wait for anything.
"""

import argparse
import gzip
import io
import json
import os
import pickle
import sys
import time
from pathlib import Path

import pytest

from everstep.cli.examine import analyze
from everstep.errors import ConfigError

NOW_NS = 1_795_266_560_000_000_000


def entry(seq, completed=True, group="0", **more):
    return {
        "record_id": seq - 1, "pg_id": 0, "process_group": (group, "default_pg"), "collective_seq_id": seq,
        "op_id": seq, "p2p_seq_id": 0, "profiling_name": "nccl:all_reduce", "time_created_ns": NOW_NS + seq * 10**9,
        "input_sizes": [[4]], "input_dtypes": ["Float"], "output_sizes": [[4]], "output_dtypes": ["Float"],
        "state": "completed" if completed else "started", "retired": completed, "timeout_ms": 600_000, "is_p2p": False,
        "time_discovered_started_ns": None, "time_discovered_completed_ns": None,
    } | more  # fmt: skip


def record(count, pending=True, ranks=4, version="2.10"):
    entries = [entry(seq) for seq in range(1, count)] + [entry(count, completed=not pending)]
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(range(ranks)))}}
    return {"version": version, "pg_config": config, "pg_status": {}, "entries": entries}


def healthy_evidence(folder: Path, culprit: int = 2) -> None:
    """Rank `culprit` never entered #9."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank in range(4):
        data = record(8, pending=False) if rank == culprit else record(9)
        if rank % 2:
            (folder / f"fr_{rank}.json").write_text(json.dumps(data))
        else:
            (folder / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(data, 2))


def run(folder: Path, capsys) -> dict:
    parser = argparse.ArgumentParser()
    analyze.add_arguments(parser)
    begun = time.monotonic()
    assert analyze.run(parser.parse_args([str(folder)])) == 0
    text = capsys.readouterr().out
    assert analyze.run(parser.parse_args([str(folder), "--json"])) == 0
    found = json.loads(capsys.readouterr().out)
    assert time.monotonic() - begun < 60
    assert text.splitlines()[0].startswith(found["code"])
    assert {"verdict", "code", "ranks", "group", "confidence", "evidence"} <= found.keys()
    return found


def reasons(found: dict) -> dict[str, str]:
    return {u["file"]: u["why"] for u in found["unreadable"]}


class Gadget:
    def __init__(self, command):
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


def deep_json(depth=200_000):
    return b"[" * depth + b"]" * depth


def doubling_pickle():
    parts = [b"]q%c(h%ch%ce" % (i, i - 1, i - 1) if i else b"]q\x00" for i in range(100)]
    return b"\x80\x02(" + b"".join(parts) + b"t."


HOSTILE = {
    "gadget_rank_9": lambda d: pickle.dumps(Gadget(f"touch {d}/was-run"), 2),
    "gadget_rank_10.pkl": lambda d: pickle.dumps(record(3) | {"x": Gadget(f"touch {d}/was-run")}, 4),
    "nccl_trace_rank_11": lambda d: b"cos\nsystem\n(S'touch " + str(d).encode() + b"/was-run'\ntR.",
    "rank_12.pkl": lambda d: b"\x80\x02X\xff\xff\xff\xff",
    "rank_13.pkl": lambda d: b"\x80\x02Nr\xff\xff\xff\xff.",
    "rank_14.pkl": lambda d: b"\x80\x02\x8b\xff\xff\xff\x7f",
    "rank_15.pkl": lambda d: doubling_pickle(),
    "rank_16.pkl": lambda d: b"\x80\x02" + b"(" * 300_000,
    "rank_17.json": lambda d: deep_json(),
    "rank_18.json": lambda d: b"[" + b"1," * 4_100_000 + b"1]",
    "rank_19.json": lambda d: b'{"version": "2.1", "pg_config": {}, "entries": [' + b"9" * 50_000 + b"]}",
    "fr_rank_20.json": lambda d: json.dumps(record(3, version="9.0")).encode(),
    "fr_rank_21.json": lambda d: json.dumps(record(3))[:-40].encode(),
    "fr_rank_22.pkl": lambda d: pickle.dumps(record(3), 2)[:-40],
    "fr_rank_23.json.gz": lambda d: gzip.compress(b"x"),
    "fr_rank_24.json": lambda d: b"",
    "rank_25.bin": lambda d: b"\x00\x01\x02" * 1000,
    "rank_26.json": lambda d: b'{"hello": "world"}',
    "rank_27.json": lambda d: b'{"everstep_evidence": 99, "rank": 27}',
    "rank_28.json": lambda d: json.dumps([{"pid": "x", "frames": []}]).encode(),
    "fr_rank_29.json": lambda d: json.dumps(record(3) | {"entries": [{}]}).encode(),
    "rank_30.json": lambda d: b"\xff\xfe{\x00}\x00",
    "rank_31.pkl": lambda d: pickle.dumps([1, 2, 3], 2),
}


def test_hostile_files_are_listed_with_a_reason_and_the_verdict_stands(tmp_path, capsys):
    folder = tmp_path / "evidence"
    healthy_evidence(folder)
    for name, make in HOSTILE.items():
        (folder / name).write_bytes(make(tmp_path))
    found = run(folder, capsys)
    assert not (tmp_path / "was-run").exists()
    listed = reasons(found)
    in_evidence = " ".join(e["says"] for e in found["evidence"])
    assert (found["code"], found["ranks"]) == ("ES-H02", [2]), found["verdict"]
    for name in HOSTILE:
        if name not in ("fr_rank_20.json", "fr_rank_29.json"):  # records: read, and refused when their rank is known
            assert len(listed.get(name, "")) > 4, name
    assert "code" in listed["gadget_rank_9"]
    assert "code" in listed["gadget_rank_10.pkl"]
    assert in_evidence


@pytest.mark.parametrize("name", HOSTILE)
def test_each_hostile_file_alone_gives_an_answer(tmp_path, capsys, name):
    folder = tmp_path / "evidence"
    folder.mkdir()
    (folder / name).write_bytes(HOSTILE[name](tmp_path))
    found = run(folder, capsys)
    assert not (tmp_path / "was-run").exists()
    assert found["code"] == "ES-H15"
    assert found["unreadable"] or any(name in e["says"] for e in found["evidence"])


def test_pipes_links_and_devices_are_not_opened(tmp_path, capsys):
    folder = tmp_path / "evidence"
    healthy_evidence(folder)
    os.mkfifo(folder / "stack_rank_0.json")
    (folder / "fr_rank_8.json").symlink_to("/dev/zero")
    (folder / "around").symlink_to(folder)
    (folder / "unreadable_rank_3.log").write_text("x")
    (folder / "unreadable_rank_3.log").chmod(0)
    found = run(folder, capsys)
    assert found["ranks"] == [2]
    assert reasons(found)["stack_rank_0.json"] == "cannot be read: not a regular file"
    assert "fr_rank_8.json" in reasons(found)


@pytest.mark.parametrize("suffix", ["json", "pkl"])
def test_a_dump_cut_anywhere_never_blames_its_rank_for_having_ended_there(tmp_path, capsys, suffix):
    data = record(9)
    whole = json.dumps(data).encode() if suffix == "json" else pickle.dumps(data, 2)
    folder = tmp_path / "evidence"
    healthy_evidence(folder)
    for old in folder.glob("*0*"):
        old.unlink()
    parser = argparse.ArgumentParser()
    analyze.add_arguments(parser)
    for length in range(0, len(whole), 97):
        (folder / f"fr_rank_0.{suffix}").write_bytes(whole[:length])
        assert analyze.run(parser.parse_args([str(folder), "--json"])) == 0
        assert json.loads(capsys.readouterr().out)["ranks"] == [2]


def test_a_huge_log_is_read_at_its_ends(tmp_path, capsys):
    folder = tmp_path / "evidence"
    healthy_evidence(folder)
    with (folder / "rank-0.log").open("wb") as file:
        file.write(b"step: 1 loss: 3.0\n")
        file.seek(3 << 30)  # a hole: no disk is used
        file.write(b"\nstep: 999 loss: 2.0\n")
    with (folder / "fr_rank_5.json").open("wb") as file:
        file.write(b'{"version": "2.1", "entries": [')
        file.truncate(3 << 30)
    found = run(folder, capsys)
    assert found["ranks"] == [2]
    assert "3072 MiB" in reasons(found)["fr_rank_5.json"]


def test_generations_are_kept_apart(tmp_path, capsys):
    healthy_evidence(tmp_path / "gen-0", culprit=1)
    healthy_evidence(tmp_path / "gen-3", culprit=2)
    found = run(tmp_path, capsys)
    assert (found["generation"], found["ranks"]) == (3, [2])
    assert any("generation 0 was set aside" in note for note in found["notes"])


def test_an_old_record_of_a_rank_gives_way_to_its_new_one(tmp_path, capsys):
    healthy_evidence(tmp_path)
    (tmp_path / "old_rank_0.json").write_text(json.dumps(record(3)))
    found = run(tmp_path, capsys)
    assert found["ranks"] == [2]
    assert any("old_rank_0.json was set aside" in note for note in found["notes"])


def test_records_of_different_moments_blame_nobody_falsely(tmp_path, capsys):
    healthy_evidence(tmp_path)
    (tmp_path / "nccl_trace_rank_0").write_bytes(pickle.dumps(record(4), 2))  # from before: the others completed #8
    found = run(tmp_path, capsys)
    assert found["ranks"] == [2]
    assert any("taken earlier" in e["says"] for e in found["evidence"])


def test_the_rank_is_taken_from_content_before_the_name(tmp_path, capsys):
    for rank in range(4):
        data = record(8, pending=False) if rank == 2 else record(9)
        wrapped = {
            "everstep_evidence": 1,
            "rank": rank,
            "generation": 5,
            "flight_record": data,
            "unavailable": ["py-spy: no"],
        }
        (tmp_path / f"a_rank_{7 - rank}.json").write_text(json.dumps(wrapped))
    found = run(tmp_path, capsys)
    assert (found["ranks"], found["generation"]) == ([2], 5)


def test_logs_alone_name_the_rank_without_a_timeout(tmp_path, capsys):
    for rank in range(4):
        line = f"step: 10 loss: 2.0\n[Rank {rank}] Watchdog caught collective operation timeout: "
        line += "WorkNCCL(SeqNum=412, OpType=ALLREDUCE, NumelIn=1) ran for 600027 milliseconds\n"
        (tmp_path / f"rank-{rank}.log").write_text(line if rank != 3 else "step: 10 loss: 2.0\n")
    assert run(tmp_path, capsys)["ranks"] == [3]


def test_a_folder_that_is_none(tmp_path):
    parser = argparse.ArgumentParser()
    analyze.add_arguments(parser)
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "absent", tmp_path / "pipe"):
        with pytest.raises(ConfigError, match="cannot be read as a directory"):
            analyze.run(parser.parse_args([str(path)]))


def test_one_log_is_read_as_a_folder_with_one_file(tmp_path, capsys):
    (tmp_path / "other").write_text("RuntimeError: CUDA error: an illegal memory access was encountered\n")
    (tmp_path / "pasted").write_text("[rank0]: step 1 loss 2.0\n[rank0]: KeyError: 'x'\n")
    found = run(tmp_path / "pasted", capsys)
    assert [known["source"] for known in found["known"]] == ["pasted"]


def test_standard_input_is_read_as_one_log(monkeypatch, capsys):
    text = b"".join(
        b"[rank%d]:[E1 ProcessGroupNCCL.cpp:1664] [PG 1 Rank %d] Exception detected by watchdog at work: 80, last "
        b"enqueued NCCL work: 82, last completed NCCL work: 79.\n" % (rank, rank)
        for rank in (0, 1, 3)
    )
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
    parser = argparse.ArgumentParser()
    analyze.add_arguments(parser)
    assert analyze.run(parser.parse_args(["-", "--json"])) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["ranks"] == [2]
    assert found["collect"]


def test_an_empty_folder_says_so(tmp_path, capsys):
    found = run(tmp_path, capsys)
    assert (found["code"], found["ranks"], found["confidence"]) == ("ES-H15", [], "low")


def test_control_characters_and_half_surrogates_steer_no_terminal_and_break_no_json(tmp_path, capsys):
    healthy_evidence(tmp_path)
    (tmp_path / os.fsdecode(b"rank-0-\xff\x1b[31m.json")).write_bytes(b'{"x":')
    frame = {"name": "f\x1b[2J\ud800", "filename": "/home/u/a\u202e.py", "line": 3}
    thread = {
        "pid": 7,
        "thread_id": 1,
        "thread_name": "MainThread",
        "active": True,
        "owns_gil": True,
        "frames": [frame],
    }
    native = [{"pid": 7, "tid": 7, "name": "x\x07", "state": "D", "call": "read of /data/\x1b]0;x\x07\udcff"}]
    envelope = {"everstep_evidence": 1, "rank": 2, "stacks": [thread], "native": native, "states": [[7, "D"]]}
    (tmp_path / "rank-2.json").write_text(json.dumps(envelope))
    assert run(tmp_path, capsys)["ranks"] == [2]
    parser = argparse.ArgumentParser()
    analyze.add_arguments(parser)
    analyze.run(parser.parse_args([str(tmp_path)]))
    text = capsys.readouterr().out
    assert "read of /data/" in text
    assert all(c.isprintable() or c == "\n" for c in text)
