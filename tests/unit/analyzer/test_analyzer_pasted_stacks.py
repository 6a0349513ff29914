"""Stacks of py-spy and faulthandler in the middle of other text, of several ranks at once."""

import pytest

from everstep.analyzer.hangs.combine import diagnose
from everstep.analyzer.observations.records import Case, RankEvidence
from everstep.analyzer.reading.pasted_stacks import find
from everstep.evidence.folder import read_folder

WAITS = ["wait (torch/distributed/distributed_c10d.py:3252)", "all_reduce (torch/distributed/distributed_c10d.py:40)"]
LOADS = ["read (urllib3/response.py:50)", "fetch (/job/data.py:8)"]


def py_spy(pid: int, rank: int | None, frames: list[str]) -> list[str]:
    option = f" --local-rank={rank}" if rank is not None else ""
    return [
        f"Process {pid}: /usr/bin/python train.py{option}",
        "Python v3.11.9 (/usr/bin/python3.11)",
        "",
        f'Thread {pid} (idle): "MainThread"',
        *(f"    {frame}" for frame in frames),
        "    main (/job/train.py:30)",
        "    <module> (/job/train.py:44)",
    ]


def fault(frames: list[tuple[str, int, str]], head: str = "Thread") -> list[str]:
    return [
        f"{head} 0x00007f00aa (most recent call first):",
        *(f'  File "{file}", line {line} in {name}' for file, line, name in frames),
    ]


def test_py_spy_dumps_with_headings_between_log_lines():
    text = [
        "hi, it stands still since yesterday",
        *(line for rank in range(3) for line in (f"### rank {rank}", *py_spy(900 + rank, None, WAITS), "")),
        "==> stack-rank-3.txt <==",
        *py_spy(903, None, LOADS),
        "[rank0]: step 41 loss 2.0",
    ]
    found = find(text, None).owned
    assert [(rank, process.pid) for rank, process in found] == [(0, 900), (1, 901), (2, 902), (3, 903)]
    assert found[3][1].threads[0].frames[1].name == "fetch"
    ranks = tuple(RankEvidence(rank=rank, processes=(process,)) for rank, process in found)
    assert diagnose(Case(at=9.0, ranks=ranks, world=(0, 1, 2, 3))).verdict.ranks == (3,)


def test_the_command_line_says_the_rank():
    text = [line for rank in (4, 5) for line in py_spy(rank + 70, rank, WAITS)]
    assert [rank for rank, _ in find(text, None).owned] == [4, 5]


def test_local_ranks_that_come_twice_are_of_two_machines_and_no_ranks_of_the_job():
    text = [line for pid, rank in ((70, 0), (71, 1), (80, 0), (81, 1)) for line in py_spy(pid, rank, WAITS)]
    found = find(text, None)
    assert found.owned == ()
    assert [process.pid for process in found.unowned] == [70, 71, 80, 81]


@pytest.mark.parametrize(
    "heading", ["rank 3 waits for this one, rank 0:", "of local rank 2", "on node rank 1"], ids=str
)
def test_a_heading_that_does_not_say_which_rank_gives_none(heading):
    assert find([heading, *py_spy(900, None, WAITS)], None).owned == ()


@pytest.mark.parametrize("tag", ["[rank2]: ", "[default2]:"])
def test_faulthandler_with_tags(tag):
    lines = [
        *fault([("/usr/lib/python3.11/threading.py", 320, "wait")]),
        "",
        *fault([("/job/data.py", 8, "fetch"), ("/job/train.py", 30, "main")], "Current thread"),
    ]
    found = find(["step 3", *(f"{tag}{line}" for line in lines), "[rank0]: step 4"], None).owned
    assert [rank for rank, _ in found] == [2]
    names = {thread.name: [frame.name for frame in thread.frames] for thread in found[0][1].threads}
    assert names["MainThread"] == ["fetch", "main"]


def test_a_stack_without_an_owner_accuses_no_rank_and_says_where_it_stands(tmp_path):
    found = find(py_spy(900, None, WAITS), None)
    assert (found.owned, [process.pid for process in found.unowned]) == ((), [900])
    (tmp_path / "dump.txt").write_text("\n".join(py_spy(900, None, WAITS)))
    folder = read_folder(tmp_path, 1.8e9)
    assert folder.case.ranks == ()
    (note,) = folder.notes
    assert "process 900 was read, and nothing says which rank it is: waits in communication" in note
    assert "called at train.py:30 main" in note
    assert [rank for rank, _ in find(py_spy(900, None, WAITS), 7).owned] == [7]


def test_garbage_gives_nothing():
    assert (
        find(
            ["Process 1: ", "Thread (most recent call first):", "Process x", "most recent call first"] * 50, None
        ).owned
        == ()
    )
