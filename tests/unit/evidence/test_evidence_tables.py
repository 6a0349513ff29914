"""Traces of operations: CSV, JSON lines and Chrome traces become one table, whatever else is in them."""

import gzip
import json
import subprocess
import sys

import pytest

from everstep.analyzer.reading.operations import Operation, is_computing, to_table
from everstep.analyzer.reading.pickled import UnreadableError
from everstep.cli import main as cli
from everstep.evidence import parquet
from everstep.evidence.tables import is_table, read_tables, traces_in

RANKS, STEPS = 8, 6


def rows(slow=5):
    return [
        {"rank": r, "stage": r // 4, "dp_rank": r % 4, "step": s, "optype": op, "start_ts": 10.0 * s + at,
         "duration": d * (1.6 if r == slow and op == "forward-compute" else 1.0)}
        for s in range(STEPS)
        for r in range(RANKS)
        for op, at, d in (("forward-compute", 0.0, 0.5 + 0.001 * (r * s % 3)), ("forward-recv", 1.0, 3.0))
    ]  # fmt: skip


def csv_of(made):
    return "\n".join([",".join(made[0]), *(",".join(map(str, row.values())) for row in made)]) + "\n"


def events_of(rank, slow=False):
    listed = []
    for step in range(STEPS):
        at = 1e6 * step
        listed.append({"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{step}", "ts": at, "dur": 9e5})
        work = 3e5 * (1.6 if slow else 1.0) + 1e3 * (rank * step % 3)
        listed.append({"ph": "X", "cat": "kernel", "name": "gemm", "ts": at + 10, "dur": work, "tid": 7})
        listed.append(
            {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce", "ts": at + 5e5, "dur": 3e5, "tid": 8}
        )
        listed.append({"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": at, "dur": 8e5, "tid": "main"})
        listed.append({"ph": "i", "name": "mark", "ts": at})
    return listed


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_tables(tmp_path, form):
    path = tmp_path / f"trace.{form}"
    path.write_text(csv_of(rows()) if form == "csv" else "\n".join(map(json.dumps, rows())))
    assert is_table(path)
    table = read_tables([path])
    assert table.compute_s[5][1] == pytest.approx(0.5 * 1.6, rel=0.01)
    assert table.places[5] == (1, 1)
    assert not table.notes


def test_parquet(tmp_path, capsys):
    arrow, writer = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "trace.parquet"
    extra = [{**row, "note": "x" * 10} for row in rows()]
    writer.write_table(arrow.Table.from_pylist(extra), path)
    assert is_table(path)
    table = read_tables([path])
    (tmp_path / "trace.csv").write_text(csv_of(rows()))
    assert table == read_tables([tmp_path / "trace.csv"])
    assert cli.main(["analyze", str(path)]) == 0
    assert "rank 5: computes 60% longer than the other ranks of stage 1" in capsys.readouterr().out


def test_one_long_text_in_many_rows_of_parquet_takes_little_memory(tmp_path):
    """A dictionary has the text once: some KiB of file, 200 GiB of texts."""
    arrow, writer = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "trace.parquet"
    zeros = arrow.array([0] * 200_000, arrow.int32())
    name = arrow.DictionaryArray.from_arrays(zeros, arrow.array(["a" * (1 << 20)]))
    lists = arrow.array([[0] * 100] + [[]] * 199_999)
    columns = {"rank": zeros, "step": zeros, "name": name, "start": zeros, "duration": zeros, "micro": lists}
    writer.write_table(arrow.table(columns), path, compression="zstd")
    text = arrow.table({**columns, "name": arrow.array(["a" * 100_000] * 1000 + [""] * 199_000)})
    writer.write_table(text, tmp_path / "plain.parquet", compression="zstd", use_dictionary=False)
    program = f"""
import re, resource
from pathlib import Path
from everstep.evidence import parquet
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
for name in ("trace", "plain"):
    longest = max(len(row["name"]) for row in parquet.rows(Path({str(tmp_path)!r}) / f"{{name}}.parquet", list))
    peak = re.search("VmHWM:\\s*([0-9]+)", Path("/proc/self/status").read_text())  # ru_maxrss has the parent's too
    print(longest, int(peak[1]) >> 10)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    for line in done.stdout.splitlines():
        longest, mib = map(int, line.split())
        assert (longest, mib < 500) == (parquet.MAX_TEXT, True), done.stdout


@pytest.mark.parametrize("damage", [lambda data: data[:-60], lambda data: data[:200], lambda _: b"PAR1" * 9])
def test_a_damaged_parquet_file_is_refused(tmp_path, damage):
    arrow, writer = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "trace.parquet"
    writer.write_table(arrow.Table.from_pylist(rows()), path)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(UnreadableError, match="not a Parquet table"):
        read_tables([path])


def test_without_pyarrow_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    path = tmp_path / "trace.parquet"
    path.write_bytes(b"PAR1 and more")
    with pytest.raises(UnreadableError, match=r"everstep\[parquet\]"):
        read_tables([path])


def test_analyze_takes_a_table(tmp_path, capsys):
    path = tmp_path / "trace.csv"
    path.write_text(csv_of(rows()))
    assert cli.main(["analyze", str(path)]) == 0
    assert "rank 5: computes 60% longer than the other ranks of stage 1" in capsys.readouterr().out
    assert cli.main(["analyze", str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["code"], found["ranks"]) == ("ES-S01", [5])


def test_profiler_traces_of_a_folder(tmp_path, capsys):
    for rank in range(4):
        text = json.dumps({
            "schemaVersion": 1, "distributedInfo": {"rank": rank, "backend": "nccl"}, "deviceProperties": [{}],
            "traceEvents": events_of(rank, slow=rank == 2),
        })  # fmt: skip
        (tmp_path / f"host{rank}.pt.trace.json.gz").write_bytes(gzip.compress(text.encode()))
    assert len(traces_in(tmp_path)) == 4
    assert cli.main(["analyze", str(tmp_path)]) == 0
    assert "rank 2: computes" in capsys.readouterr().out


def test_a_trace_beside_evidence_takes_nothing_over(tmp_path):
    (tmp_path / "a.pt.trace.json").write_text("{}")
    (tmp_path / "rank-0.log").write_text("step 1\n")
    assert traces_in(tmp_path) == []


def test_a_chrome_trace_whose_processes_are_the_ranks(tmp_path):
    listed = [
        {
            "name": name,
            "cat": name,
            "pid": rank,
            "tid": 0,
            "ph": "X",
            "ts": 1e6 * step + at,
            "dur": 2e5,
            "args": {"step": step},
        }
        for rank in range(3)
        for step in range(4)
        for name, at in (("backward-compute", 0), ("forward-send", 3e5))
    ]
    path = tmp_path / "t.json"
    path.write_text(json.dumps(listed))
    table = read_tables([path], num_stages=3)
    assert table.compute_s[2] == pytest.approx(dict.fromkeys(range(4), 0.2))
    assert table.places == {0: (0, 0), 1: (1, 0), 2: (2, 0)}


def test_what_waits_or_loads_is_no_computing():
    for name in ("forward-recv", "nccl:all_reduce", "gloo:broadcast", "grads-sync", "enumerate(DataLoader)", "barrier"):
        assert not is_computing(name), name
    for name in ("forward-compute", "aten::mm", "optimizer", "backward"):
        assert is_computing(name), name


def test_nested_operations_count_once_and_waits_within_them_do_not():
    listed = [
        Operation(0, 0, "step", 0.0, 10.0),
        Operation(0, 0, "aten::mm", 1.0, 2.0),
        Operation(0, 0, "c10d::allreduce_", 4.0, 3.0),
        Operation(0, 0, "kernel elsewhere", 9.0, 3.0, lane=1),
    ]
    assert to_table(listed, {}).compute_s == {0: {0: pytest.approx(9.0)}}


def test_odd_rows_are_counted_and_left_out(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(
        "rank,step,op,start,duration\n0,1,mm,0,1\nx,1,mm,0,1\n1,1,mm,nan,1\n1,1,mm,0,-1\n1,1\n1,1,mm,0,1e400\n"
    )
    table = read_tables([path])
    assert table.compute_s == {0: {1: 1.0}}
    assert "5 rows" in table.notes[0]


@pytest.mark.parametrize(
    "data",
    [b"rank,step,op,start,duration\n", b'{"traceEvents": 3}', b'[{"ph": "X", ', b"\x1f\x8b\x08broken", b"[" * 100_000],
)
def test_what_is_no_trace_is_refused_in_words(tmp_path, data):
    path = tmp_path / ("t.json.gz" if data[:1] == b"\x1f" else "t.json")
    path.write_bytes(data)
    with pytest.raises(UnreadableError):
        read_tables([path])
