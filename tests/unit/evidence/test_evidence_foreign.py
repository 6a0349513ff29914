"""What files of strangers do to the report of `everstep analyze`: their names, encodings and numbers."""

import contextlib
import json
from pathlib import Path

import pytest

from everstep.analyzer.reading.pickled import UnreadableError
from everstep.cli.examine.analyze import render
from everstep.evidence.apart import Weighed, read_apart, read_or_weigh
from everstep.evidence.folder import read_folder
from everstep.evidence.logs import WHOLE_BYTES
from everstep.evidence.names import numbered
from everstep.evidence.tables import read_tables
from everstep.report.shares import render_shares

FAULT = "RuntimeError: CUDA error: an illegal memory access was encountered"


def test_a_name_with_line_ends_writes_no_line_of_the_report(tmp_path):
    (tmp_path / "a\nES-H02 rank 7 is guilty\nb.pkl").write_bytes(b"x")
    found = read_apart(tmp_path, 1.8e9)
    lines = render(found.diagnosis, found.folder).splitlines()
    assert not [line for line in lines if line.startswith("ES-H02")]
    assert any("a\\nES-H02 rank 7 is guilty\\nb.pkl: " in line for line in lines)


def test_a_traces_name_with_line_ends_writes_none_either(tmp_path):
    path = tmp_path / "a\nES-S01 rank 7 is slow\n.csv"
    path.write_text("rank,step,name,start,duration\n0,1,f,1,1\nx,1,f,1,1\n1,1,f,1,1\n")
    found = read_or_weigh(path, 1.8e9)
    assert isinstance(found, Weighed)
    lines = render_shares(found.shares, found.table).splitlines()
    assert not [line for line in lines if line.startswith("ES-S01")]
    assert any("1 rows lack" in line for line in lines)


@pytest.mark.parametrize("end", ["\n", "\r\n"], ids=["of Unix", "of Windows"])
def test_lines_are_counted_as_editors_do(tmp_path, end):
    """Not the texts that a progress bar wrote over each other, nor a form feed."""
    text = ["step 1 loss 2.0", "10%|a\r20%|b\r30%|c", "page\x0c of a manual", FAULT]
    (tmp_path / "job.log").write_bytes(end.join(text).encode() + end.encode())
    (known,) = read_folder(tmp_path, 1.8e9).known
    assert (known.code, known.line) == ("ES-CU04", 4)


def test_a_step_that_a_progress_bar_wrote_is_still_read(tmp_path):
    (tmp_path / "rank-1.log").write_text("step 1 loss 2.0\rstep 2 loss 1.9\rstep 3 loss 1.8")
    (rank,) = read_folder(tmp_path, 1.8e9).case.ranks
    assert rank.last_step == 3


def test_a_log_whose_middle_is_not_read_says_so(tmp_path):
    (tmp_path / "job.log").write_text("x" * 70 + "\n" + ("a line of no meaning\n" * (WHOLE_BYTES // 10)) + FAULT + "\n")
    (note,) = read_folder(tmp_path, 1.8e9).notes
    assert "job.log: " in note
    assert "KiB in the middle were not read; numbers of lines below them are too small" in note


def test_a_log_that_begins_with_a_hole_is_read(tmp_path):
    """What is left by a program that writes on after its log was cut to nothing."""
    (tmp_path / "job.log").write_bytes(b"\0" * 20_000 + f"\n{FAULT}\n".encode())
    (tmp_path / "core").write_bytes(b"\0" * 20_000)
    folder = read_folder(tmp_path, 1.8e9)
    assert [known.code for known in folder.known] == ["ES-CU04"]
    assert [each.file for each in folder.unreadable] == ["core"]


def test_a_log_in_utf_16_is_named_as_such(tmp_path):
    (tmp_path / "job.log").write_bytes(FAULT.encode("utf-16"))
    (unreadable,) = read_folder(tmp_path, 1.8e9).unreadable
    assert unreadable.why == "text in UTF-16: write it as UTF-8 first (iconv -f UTF-16)"


def test_one_number_in_one_name_is_no_rank():
    assert numbered(["dump_7.json"]) == {}
    assert numbered(["dump_0.json", "dump_1.json"]) == {"dump_0.json": 0, "dump_1.json": 1}


HUGE = "9" * 30


@pytest.mark.parametrize(
    ("step", "rank"), [(HUGE, 0), ("4", int(HUGE)), ("4", -1)], ids=["a huge step", "a huge rank", "a negative rank"]
)
def test_numbers_that_no_trace_has_are_of_no_rank_and_step(tmp_path, step, rank):
    events = [
        {"ph": "X", "name": f"ProfilerStep#{step}", "ts": 1, "dur": 9, "pid": 1},
        {"ph": "X", "name": "gemm", "cat": "kernel", "ts": 2, "dur": 1, "pid": 1},
    ]
    path = tmp_path / "x.trace.json"
    path.write_text(json.dumps({"traceEvents": events, "distributedInfo": {"rank": rank}}))
    with pytest.raises(UnreadableError, match="no operation with rank, step"):
        read_tables([path])


def test_the_numbers_of_a_real_trace_are_read(tmp_path: Path):
    events = [
        {"ph": "X", "name": f"{name}", "cat": cat, "ts": at, "dur": 1.0 if cat else 9.0, "pid": 1}
        for at, name, cat in ((1.0, "ProfilerStep#4", ""), (2.0, "gemm", "kernel"))
    ]
    path = tmp_path / "x.trace.json"
    path.write_text(json.dumps({"traceEvents": events, "distributedInfo": {"rank": 3}}))
    found = read_or_weigh(path, 1.8e9)
    assert isinstance(found, Weighed)


@pytest.mark.parametrize("number", ["-1", "-1e999", "1e999", "NaN", "1e308"])
def test_numbers_that_cannot_be_measured_are_unknown(tmp_path, number):
    for rank in range(5):
        share = number if rank == 4 else "0.9"
        load = f'"load": {{"cpu_share": {share}}}, "step": 7, "step_age_s": {share}, "links": {{"eth0": {share}}}'
        gpus = f'"gpus": [{{"index": 0, "use_share": {share}}}]'
        (tmp_path / f"{rank}.json").write_text(f'{{"everstep_evidence": 1, "rank": {rank}, {load}, {gpus}}}')
    found = read_apart(tmp_path, 1.8e9, with_case=True)
    assert found.diagnosis.verdict.ranks == (), "nobody is idle by a number that is none"
    odd = found.folder.case.ranks[4]
    assert odd.load is not None
    assert (odd.load.cpu_share, odd.step, odd.step_age_s, odd.links, odd.gpus[0].use_share) == (None, 7, None, {}, None)
    assert found.folder.case.ranks[3].links == {"eth0": 0.9}


def test_of_a_run_directory_ranks_come_first_and_its_program_is_no_evidence(tmp_path):
    for name in ("journal.jsonl", "spec.json", "secret", "token-read", "logs/gen-0/rank-0/stderr.log"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("[rank0]: RuntimeError: x\n")
    for number in range(300):
        place = tmp_path / f"code/v1/docs/{number}.md"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text("CUDA out of memory\n")
    read = []

    @contextlib.contextmanager
    def watch(path):
        read.append(path)
        yield

    read_folder(tmp_path, 1.0, watch)
    assert read[0] == "logs/gen-0/rank-0/stderr.log"
    assert not [path for path in read if path.startswith(("code/", "secret", "token"))]
    (tmp_path / "spec.json").unlink()  # a directory of somebody's own is read whole
    read.clear()
    read_folder(tmp_path, 1.0, watch)
    assert len([path for path in read if path.startswith("code/")]) == 300
