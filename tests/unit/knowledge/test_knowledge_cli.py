"""`everstep kb` as people and programs call it."""

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest

from everstep.cli.main import main

LOG = b"""2026-11-17 03:14:05 step 3
[rank1]:[E ProcessGroupNCCL.cpp:632] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9)
NVRM: Xid (PCI:0000:91:00): 79, pid=7, GPU has fallen off the bus.
NVRM: frobnicator out of phase
"""


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("EVERSTEP_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("EVERSTEP_KB_DIR", raising=False)
    return tmp_path / "home"


@pytest.fixture
def log(tmp_path) -> Path:
    path = tmp_path / "rank.log"
    path.write_bytes(LOG)
    return path


def kb(capsys, *arguments: object) -> tuple[int, str, str]:
    code = main(["kb", *map(str, arguments)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_match_json_is_one_object_a_finding_root_first(capsys, log):
    code, out, err = kb(capsys, "match", log, "--json")
    rows = [json.loads(line) for line in out.splitlines()]
    assert (code, err) == (0, "")
    assert [row["code"] for row in rows] == ["ES-G79", "ES-TD01", "ES-UN02"]
    fixed = {"code", "class", "component", "blame", "severity", "role", "action", "line", "text"}
    assert all(fixed <= set(row) for row in rows)
    assert (rows[0]["class"], rows[0]["blame"], rows[0]["line"]) == ("gpu_fallen_off_bus", "machine", 3)
    assert rows[1]["explained_by"] == "ES-G79"


def test_match_says_the_cause_first(capsys, log):
    _, out, _ = kb(capsys, "match", log)
    assert out.splitlines()[0] == "cause: Xid 79 (GPU has fallen off the bus); explains 1 other findings"
    assert "frobnicator" not in out
    _, out, _ = kb(capsys, "match", log, "--all")
    assert "frobnicator" in out


def test_gzip_is_read_also_in_members_cut_off_and_damaged(capsys, tmp_path):
    packed = gzip.compress(LOG[:60]) + gzip.compress(LOG[60:])
    cases = {"whole": packed, "cut": packed[:-5], "damaged": packed[:-30] + b"\xff" * 30, "head": b"\x1f\x8b"}
    for name, data in cases.items():
        path = tmp_path / f"{name}.log.gz"
        path.write_bytes(data)
        code, out, err = kb(capsys, "match", path, "--json")
        assert code == 0
        assert ("damaged" in err) == (name != "whole")
        if name in ("whole", "cut"):
            assert "ES-G79" in out


def test_garbage_is_no_reason_to_fail(capsys, tmp_path):
    path = tmp_path / "x"
    path.write_bytes(bytes(range(256)) * 999)
    assert kb(capsys, "match", path)[0] == 0
    path.write_bytes(b"")
    code, out, _ = kb(capsys, "match", path)
    assert (code, out) == (0, "no cause: nothing was recognised\n")


def test_a_file_that_is_not_there_is_said(capsys, tmp_path):
    code, _, err = kb(capsys, "match", tmp_path / "none")
    assert code == 2
    assert err.startswith("everstep: ")
    assert "No such file or directory" in err
    assert kb(capsys, "match", tmp_path)[0] == 2


def test_standard_input_is_read_without_arguments(tmp_path):
    command = [sys.executable, "-m", "everstep.cli.main", "kb", "match", "--json"]
    done = subprocess.run(command, input=LOG, capture_output=True, timeout=60, check=True)
    assert json.loads(done.stdout.splitlines()[0])["code"] == "ES-G79"
    assert done.stderr == b""


def test_ls_and_show(capsys):
    code, out, _ = kb(capsys, "ls", "fallen")
    assert code == 0
    assert {line.split()[0] for line in out.splitlines()} == {"ES-G79", "ES-GD01"}
    _, out, _ = kb(capsys, "show", "es-g79")
    assert "REBOOT_NODE" in out
    assert "confirm" in out
    code, _, err = kb(capsys, "show", "ES-G999")
    assert code == 2
    assert "no signature 'ES-G999'" in err


def test_a_site_directory_is_used_and_what_is_broken_in_it_is_said(capsys, tmp_path, monkeypatch):
    (tmp_path / "site.toml").write_text("[[signature]]\ncode = 'X'\n")
    for arguments in (("--kb-dir", str(tmp_path)), ()):
        if not arguments:
            monkeypatch.setenv("EVERSTEP_KB_DIR", str(tmp_path))
        code, _, err = kb(capsys, "ls", *arguments)
        assert code == 0
        assert err == f"everstep kb: refused {tmp_path}/site.toml:1: class: missing\n"


def test_unknown_lines_are_queued_counted_and_taken_out(capsys, log, home):
    assert "Nothing waits" in kb(capsys, "unknown")[1]
    for _ in range(2):
        kb(capsys, "match", log, "--remember")
    _, out, _ = kb(capsys, "unknown", "--json")
    (row,) = [json.loads(line) for line in out.splitlines()]
    assert (row["family"], row["count"], row["text"]) == ("nvrm", 2, "NVRM: frobnicator out of phase")
    queue = home / "kb" / "unknown.jsonl"
    queue.write_bytes(b"\xff{garbage\n" + queue.read_bytes() + b'{"id": 3}\n')
    assert row["id"] in kb(capsys, "unknown")[1]
    assert kb(capsys, "unknown", "--drop", row["id"])[0] == 0
    assert kb(capsys, "unknown", "--drop", row["id"])[0] == 2
    assert "Nothing waits" in kb(capsys, "unknown")[1]
    assert row["id"] in kb(capsys, "unknown", log)[1]


def test_importing_the_verb_imports_neither_torch_nor_the_network():
    code = "import sys, everstep.cli.examine.kb; print([m for m in ('torch', 'aiohttp', 'rich') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, check=True, text=True)
    assert done.stdout == "[]\n"


def test_a_name_with_line_ends_writes_no_line_of_its_own(capsys, tmp_path):
    log = tmp_path / "a\nES-G79 rank 3: guilty\n.log"
    log.write_bytes(b"RuntimeError: CUDA out of memory\n")
    _, out, _ = kb(capsys, "match", log)
    assert "ES-CU08" in out
    assert not [line for line in out.splitlines() if line.startswith("ES-G79")]
