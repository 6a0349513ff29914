"""A folder with one bad file gives what the others say, and the bad file is named with what was wrong."""

import json
import math
import os
import pickle
import subprocess
import sys
import time
import types
from pathlib import Path

import msgspec
import pytest

from everstep.analyzer.hangs.combine import diagnose
from everstep.analyzer.reading import bounds
from everstep.analyzer.reading.log_lines import read_point
from everstep.analyzer.reading.stacks import from_text
from everstep.analyzer.slowness.shares import weigh
from everstep.controller.diagnosing import diagnose_folder
from everstep.errors import ConfigError
from everstep.evidence import apart
from everstep.evidence import assemble as assembling
from everstep.evidence import folder as folders
from everstep.evidence.apart import Found, Weighed, _Ended, _Listener, read_apart, read_or_weigh
from everstep.evidence.folder import read_folder
from everstep.evidence.tables import read_tables
from everstep.evidence.watched import TooLongError

NOW = 1_795_266_560.0


def record(seqs: int, *, pending: bool) -> dict[str, object]:
    entries = [
        {
            "record_id": seq - 1, "process_group": ["0", "default_pg"], "collective_seq_id": seq, "p2p_seq_id": 0,
            "profiling_name": "nccl:all_reduce", "time_created_ns": int(NOW * 1e9) + seq, "input_sizes": [[4]],
            "output_sizes": [[4]], "state": "started" if pending and seq == seqs else "completed",
            "retired": not (pending and seq == seqs), "timeout_ms": 600_000, "is_p2p": False,
        }
        for seq in range(1, seqs + 1)
    ]  # fmt: skip
    groups = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"}}
    return {"version": "2.10", "pg_config": groups, "pg_status": {}, "entries": entries}


def good_files(folder: Path) -> None:
    """Rank 2 never entered #9."""
    for rank in range(4):
        (folder / f"fr-rank-{rank}.json").write_text(json.dumps(record(8 if rank == 2 else 9, pending=rank != 2)))


def tripled(depth: int) -> bytes:
    """A tuple of three times itself, `depth` deep: small here, 3**depth written out."""
    return b"\x80\x02K\x01q\x00" + b"".join(b"h%ch%ch%c\x87q%c" % (n, n, n, n + 1) for n in range(depth)) + b"."


def pickled(head: bytes, bomb: bytes) -> bytes:
    """{"everstep_evidence": ..., head: bomb}"""
    body = bomb[2:-1]
    return (
        b"\x80\x02}(X\x11\x00\x00\x00everstep_evidence"
        + (body if head == b"everstep_evidence" else b"K\x01")
        + (b"" if head == b"everstep_evidence" else b"X%c\x00\x00\x00" % len(head) + head + body)
        + b"u."
    )


def shared_list(entries: int, length: int) -> bytes:
    """A flight record whose entries share one list by memo."""
    inner = b"](" + b"K\x04" * length + b"eq\x01"
    entry = b"}(X\x0b\x00\x00\x00input_sizesh\x01X\x09\x00\x00\x00record_idK\x01u"
    body = b"X\x07\x00\x00\x00entries](" + entry * entries + b"e"
    return (
        b"\x80\x02"
        + inner
        + b"0}(X\x09\x00\x00\x00pg_config}X\x07\x00\x00\x00versionX\x03\x00\x00\x002.1"
        + body
        + b"u."
    )


def deep_list(depth: int) -> bytes:
    return b"\x80\x02" + b"]" * depth + b"a" * (depth - 1) + b"."


BOMBS = {
    "big-at-rank-9.json": b'{"everstep_evidence": 1, "rank": 9, "at": %s}' % (b"9" * 400),
    "big-step-rank-9.json": b'{"everstep_evidence": 1, "rank": 9, "step": %s}' % (b"9" * 400),
    "big-load-rank-9.json": b'{"everstep_evidence": 1, "rank": 9, "load": {"cpu_share": %s}}' % (b"9" * 400),
    "big-pid-rank-9.json": b'{"everstep_evidence": 1, "rank": 9, "states": [[%s, "S"], [1, {}]]}' % (b"9" * 400),
    "big-digits-rank-9.json": b'{"everstep_evidence": 1, "rank": %s}' % (b"9" * 100_000),
    "nested-version-rank-9.pkl": pickled(b"everstep_evidence", deep_list(300_000)),
    "version-rank-9.pkl": pickled(b"everstep_evidence", tripled(40)),
    "unavailable-rank-9.pkl": pickled(b"unavailable", tripled(40)),
    "states-rank-9.pkl": pickled(b"states", tripled(40)),
    "stacks-rank-9.pkl": pickled(b"stacks", tripled(40)),
    "record-rank-9.pkl": pickled(b"flight_record", tripled(40)),
    "itself-rank-9.pkl": pickled(b"stacks", b"\x80\x02]q\x00h\x00a."),
    "shared-rank-9.pkl": shared_list(20_000, 4096),
    "deep-rank-9.json": b"[" * 500_000,
    "py-spy-stack-rank-9.txt": b'Process 7: python\nThread 7 (active): "M"\n    ' + b"a (" * 300_000 + b"\n",
}


@pytest.mark.parametrize("name", BOMBS)
def test_each_bomb_is_refused_in_no_time(tmp_path, name):
    """Each cause is mended by itself; the process around the reading is the second line."""
    (tmp_path / name).write_bytes(BOMBS[name])
    begun = time.process_time()
    read_folder(tmp_path, NOW)
    assert time.process_time() - begun < 20  # days, without


def test_all_bombs_beside_good_files(tmp_path):
    good_files(tmp_path)
    for name, content in BOMBS.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "rank-8.log").write_bytes(b"loss: " + b"1" * 3000 + b"x\n" * 50)
    found = read_apart(tmp_path, NOW, with_numbers=True)
    assert found.diagnosis.verdict.ranks[:1] == (2,)
    named = {each.file: each.why for each in found.folder.unreadable}
    for name in ("nested-version-rank-9.pkl", "version-rank-9.pkl", "shared-rank-9.pkl", "deep-rank-9.json"):
        assert named[name]


def test_a_number_of_a_million_digits_in_a_log():
    begun = time.process_time()
    for _ in range(200):
        read_point("loss: " + "1" * 3_990 + "x")
        read_point("loss: " + "1," * 1_990 + "x")
        read_point("loss: " + "+1.1e" * 800)
    assert time.process_time() - begun < 20
    for text, value in (("loss: 2.5", 2.5), ("loss 1,234.5 x", 1234.5), ("loss=1e-3,", 0.001), ("loss: nan", None)):
        point = read_point(text)
        assert point is not None
        assert value is None or point.loss == value


def test_stack_text_as_before():
    text = 'Process 7: python\nThread 0x1F (active+gil): "MainThread"\n'
    text += "    f (g) (a (b)/train.py:12)\n    <module> (train.py)\n    nothing\n"
    (process,) = from_text(text)
    frames = process.threads[0].frames
    assert [(each.name, each.file, each.line) for each in frames][1] == ("<module>", "train.py", 0)
    assert (frames[0].name, frames[0].file, frames[0].line) == ("f (g) (a", "b)/train.py", 12)


def test_what_is_measured_before_it_is_walked():
    assert bounds.objection(json.loads(json.dumps(record(50, pending=True)))) == ""
    shared = ["frame"] * 100
    assert bounds.objection([shared] * 10_000) == ""
    assert "written out" in bounds.objection([shared] * 1_000_000)
    assert "written out" in bounds.objection(["x" * 10_000_000] * 1_000)
    nested: list[object] = []
    for _ in range(1000):
        nested = [nested]
    assert "deep" in bounds.objection(nested)
    itself: list[object] = []
    itself.append(itself)
    assert "itself" in bounds.objection(itself)


@pytest.mark.parametrize("error", [RuntimeError("odd"), RecursionError(), MemoryError(), TooLongError("took too long")])
def test_a_fault_of_ours_at_one_file_or_rank_costs_that_one(tmp_path, monkeypatch, error):
    good_files(tmp_path)
    (tmp_path / "fr-rank-9.json").write_text(json.dumps(record(9, pending=True)))
    real_decode, real_normalise = folders.decode, assembling.normalise

    def decode(data: bytes, kind: object) -> object:
        if b'"record_id": 99' in data:
            raise error
        return real_decode(data, kind)

    def normalise(raw: object, rank: int) -> object:
        if rank == 9:
            raise error
        return real_normalise(raw, rank)

    (tmp_path / "odd-rank-3.json").write_text(json.dumps({**record(1, pending=True), "x": {"record_id": 99}}))
    monkeypatch.setattr(folders, "decode", decode)
    monkeypatch.setattr(assembling, "normalise", normalise)
    folder = read_folder(tmp_path, NOW)
    assert len([each for each in folder.case.ranks if each.flight is not None]) == 4
    refused = [each.file for each in folder.unreadable]
    if isinstance(error, TooLongError):  # it ends the whole file
        assert refused == ["fr-rank-9.json", "odd-rank-3.json"]
    else:
        assert refused == ["odd-rank-3.json"]
        assert any("fr-rank-9.json" in note for note in folder.notes)


def test_ranks_that_there_was_no_time_to_read_are_not_blamed_for_having_left_nothing(tmp_path, monkeypatch):
    good_files(tmp_path)
    whole = read_folder(tmp_path, NOW)
    deadlines = iter([time.monotonic() + 60.0] * 2)
    monkeypatch.setattr(folders, "time", types.SimpleNamespace(monotonic=lambda: next(deadlines, math.inf)))
    folder = read_folder(tmp_path, NOW)
    assert folder.case.unread == (1, 2, 3)
    assert diagnose(folder.case).verdict.ranks == ()
    blamed = diagnose(msgspec.structs.replace(folder.case, world=whole.case.world, unread=())).verdict
    assert blamed.ranks == folder.case.unread, "without that knowledge they are blamed"


def listen(program: str, cpu_s: float) -> object:
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    try:
        return _Listener(process, cpu_s).answer()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


SAY = """
import os, msgspec
from everstep.evidence.apart import GRACE_CPU_S, LENGTH, Begun
said = msgspec.msgpack.encode(Begun(path=b"x\\xff".hex(), cpu_s=0.5 - GRACE_CPU_S))
os.write(1, LENGTH.pack(len(said)) + said)
"""


def test_a_child_that_computes_for_ever_or_ends():
    name = os.fsdecode(b"x\xff")
    spins = listen(SAY + "any(False for _ in iter(int, 1))", 0.5)
    assert isinstance(spins, _Ended)
    assert (spins.path, "CPU time" in spins.why) == (name, True)
    dies = listen(SAY + "os.kill(os.getpid(), 9)", 60.0)
    assert isinstance(dies, _Ended)
    assert (dies.path, "signal 9" in dies.why) == (name, True)


def test_a_file_that_ends_the_child_is_left_out_the_next_time(monkeypatch, tmp_path):
    good_files(tmp_path)
    (tmp_path / os.fsdecode(b"bad-\xff-rank-3")).write_bytes(b"whatever")
    asked = []
    real = apart._ask

    def ask(request: apart.Asked) -> object:
        asked.append(request.skip)
        return real(request) if request.skip else _Ended(os.fsdecode(b"bad-\xff-rank-3"), "it ended the process")

    monkeypatch.setattr(apart, "_ask", ask)
    found = read_apart(tmp_path, NOW)
    assert len(asked) == 2
    assert found.diagnosis.verdict.ranks[:1] == (2,)
    assert [each.why for each in found.folder.unreadable] == ["it ended the process"]


def test_when_nothing_helps_it_is_said(monkeypatch, tmp_path):
    endings = iter(range(100))
    monkeypatch.setattr(apart, "_ask", lambda request: _Ended(f"f{next(endings)}", "it ended the process"))
    found = read_apart(tmp_path, NOW)
    assert (found.diagnosis.verdict.code, str(found.diagnosis.verdict.confidence)) == ("ES-H15", "low")
    assert len(found.folder.unreadable) == apart.MAX_BAD_FILES
    found = diagnose_folder(tmp_path, 4)
    assert (found.verdict.code, found.limit_s) == ("ES-H15", None)


def test_memory_is_limited(tmp_path):
    """A file that fits the limit of files, and not that of memory."""
    good_files(tmp_path)
    (tmp_path / "many-rank-9.json").write_bytes(b"[" + b"[7.5,1.5]," * 1_300_000 + b"0]")
    found = read_apart(tmp_path, NOW, memory_bytes=200 << 20)
    assert found.diagnosis.verdict.ranks[:1] == (2,)
    assert ["memory" in each.why for each in found.folder.unreadable] == [True]


def test_a_trace_is_read_apart_as_well(tmp_path):
    rows = [f"{rank},{step},op,{step}.0,{0.5 if rank == 1 else 0.1}" for step in range(30) for rank in range(4)]
    trace = tmp_path / "trace.csv"
    trace.write_text("\n".join(["rank,step,operation,start,duration", *rows]) + "\n")
    found = read_or_weigh(trace, NOW)
    assert isinstance(found, Weighed)
    assert found.table == read_tables([trace])
    assert found.shares == weigh(found.table)
    good_files(tmp_path)
    assert isinstance(read_or_weigh(tmp_path, NOW), Found)


def test_a_trace_that_ends_the_process_is_said(tmp_path, monkeypatch):
    trace = tmp_path / "rank-0.trace.json"
    trace.write_text('{"traceEvents": []}')
    real = apart._ask
    ended = _Ended(trace.name, "it needed more memory than there is")
    monkeypatch.setattr(apart, "_ask", lambda asked: real(asked) if asked.skip else ended)
    with pytest.raises(ConfigError, match=r"rank-0.trace.json: .* trace of operations: it needed more memory"):
        read_or_weigh(trace, NOW)


def test_no_folder(tmp_path):
    with pytest.raises(ConfigError, match="not a directory"):
        read_apart(tmp_path / "none", NOW)


def test_the_same_as_without_a_process(tmp_path):
    good_files(tmp_path)
    (tmp_path / "rank-1.log").write_text("step 3 loss 3.5\n")
    (tmp_path / "old.pkl").write_bytes(pickle.dumps(record(3, pending=False), 2))
    found = read_apart(tmp_path, NOW, with_case=True).folder
    assert msgspec.structs.replace(found, collect=()) == read_folder(tmp_path, NOW)
