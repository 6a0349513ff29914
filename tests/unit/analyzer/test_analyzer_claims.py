"""Hang logs as people paste them: watchdogs, fingerprints, barriers, traces and RAS reports name the odd rank."""

import pytest

from everstep.analyzer.hangs.combine import diagnose
from everstep.analyzer.observations.claims import merge
from everstep.analyzer.observations.records import Case
from everstep.analyzer.overall import overall
from everstep.analyzer.reading.tool_text import ToolText
from everstep.evidence.folder import read_folder
from everstep.model.verdict import Blame, Confidence

NAME = "ProcessGroupNCCL.cpp"


def caught(rank: int, seq: int = 77, op: str = "ALLREDUCE") -> str:
    return (
        f"[rank{rank}]:[E621 05:06:30.930 {NAME}:632] [Rank {rank}] Watchdog caught collective operation timeout: "
        f"WorkNCCL(SeqNum={seq}, OpType={op}, NumelIn=8, NumelOut=8, Timeout(ms)=600000) ran for 600065 milliseconds"
    )


def status(rank: int, seq: int = 77, enqueued: int = 79, completed: int = 76, *, group: str = "PG 1") -> str:
    return (
        f"[rank{rank}]:[E621 05:06:31.002 {NAME}:1785] [{group} Rank {rank}] Exception (either an error or timeout) "
        f"detected by watchdog at work: {seq}, last enqueued NCCL work: {enqueued}, last completed NCCL "
        f"work: {completed}."
    )


def newer(rank: int, seq: int = 77, enqueued: int = 79, completed: int = 76) -> str:
    return (
        f"[rank{rank}]:[E621 05:06:31.002 {NAME}:2268] [PG ID 0 PG GUID 0(default_pg) Rank {rank}]  failure detected "
        f"by watchdog at work sequence id: {seq} PG status: last enqueued work: {enqueued}, last completed work: "
        f"{completed}"
    )


def fingerprint(rank: int, op: str, other: int, other_op: str, *, shape: str = "20, 10", other_shape: str = "") -> str:
    def call(name: str, size: str) -> str:
        return f"CollectiveFingerPrint(SequenceNumber=21, OpType={name}, TensorShape=[{size}], TensorDtypes=Float, ...)"

    return (
        f"[rank{rank}]: RuntimeError: Detected mismatch between collectives on ranks. Rank {rank} is "
        f"running collective: {call(op, shape)}, but Rank {other} is running collective: "
        f"{call(other_op, other_shape or shape)}."
    )


def traced(rank: int, op: str, count: str, *, size: int = 64) -> list[str]:
    head = f"n{rank // 4}:{900 + rank}"

    def call(name: str, number: str, elements: int) -> str:
        words = f"sendbuff 0x7f recvbuff 0x7f count {elements} datatype 7 op 0 root 0 comm 0x55a{rank} [nranks=4]"
        return f"{head}:{900 + rank} [{rank}] NCCL INFO {name}: opCount {number} {words} stream 0x1"

    init = f"ncclCommInitRank comm 0x55a{rank} rank {rank} nranks 4 cudaDev {rank} nvmlDev {rank} busId 1000"
    return [
        f"{head}:{950 + rank} [{rank}] NCCL INFO {init} commId 0xbeef - Init COMPLETE",
        call("AllReduce", "1", 8),
        call(op, count, size),
    ]


RAS = """Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      2          4            1          8        8
"""
FR = """Not all ranks joining collective, sequence number: 40
internal record id: 39
group info: 0:default_pg
collective: nccl:all_reduce
missing ranks: {5}
input sizes: [[3, 4]]
world size: 8
expected ranks: {0, 1, 2, 3, 4, 5, 6, 7}
collective state: scheduled
"""

CASES = {
    "silent in the numbering": ([caught(r) for r in (0, 1, 3)], (2,)),
    "silent, by the status line only": ([status(r) for r in (0, 1, 2, 4)], (3,)),
    "silent, newer wording": ([newer(r) for r in (0, 2, 3)], (1,)),
    "silent last rank, size is told": (["world_size=4", *(status(r) for r in (0, 1, 2))], (3,)),
    "behind": ([*(status(r) for r in (0, 1, 2)), status(3, 70, 70, 69)], (3,)),
    "a minority that went on": ([*(caught(r) for r in (0, 1, 2)), caught(3, 79)], (3,)),
    "a minority in another operation": ([*(caught(r) for r in (0, 1, 3)), caught(2, 77, "ALLGATHER")], (2,)),
    "enqueued less": ([*(status(r) for r in (0, 1, 2)), status(3, 77, 77, 76)], (3,)),
    "completed more": ([*(newer(r) for r in (0, 1, 3)), newer(2, 77, 79, 77)], (2,)),
    "two of two, one behind": ([status(0), status(1, 70, 70, 69)], (1,)),
    "all the same": ([f(r) for r in range(4) for f in (caught, status)], ()),
    "a small group beside": (
        [*(status(r) for r in range(4)), status(0, 5, 5, 4, group="PG 3"), *(status(r) for r in (4, 6, 7))],
        (5,),
    ),
    "fingerprint, other operation": (
        [fingerprint(0, "ALLREDUCE", 2, "BROADCAST"), fingerprint(1, "ALLREDUCE", 2, "BROADCAST")],
        (2,),
    ),
    "fingerprint, other shape": (
        [fingerprint(r, "ALLREDUCE", 3, "ALLREDUCE", other_shape="20, 9") for r in (0, 1, 2)],
        (3,),
    ),
    "fingerprint of two": ([fingerprint(0, "ALLREDUCE", 1, "BROADCAST")], (0, 1)),
    "monitored barrier": (
        ["RuntimeError: [Rank 0]: Ranks 1, 6 failed to pass monitoredBarrier in 30000 ms", "world_size: 8"],
        (1, 6),
    ),
    "NCCL says around": (
        ["n0:1:2 [0] init.cc:1247 NCCL WARN Mismatched collective detected, see collective calls at and around rank 3"],
        (3,),
    ),
    "torchfrtrace, missing": (FR.splitlines(), (5,)),
    "torchfrtrace, culprit": (
        [
            "Collective sequence number: 16 has errors",
            "collective: nccl:all_gather",
            "error msg: Culprit rank 2; Error type: COLLECTIVE_TYPE_MISMATCH, Expected: all_gather, all_reduce came",
        ],
        (2,),
    ),
    "RAS, dead": (
        [
            *RAS.splitlines(),
            "#0-0 (d9e1b0a6a4f8d2c1) INCOMPLETE",
            "  Missing communicator data from 1 rank",
            "  The missing rank:",
            "  Rank 3 -- GPU 3 managed by process 411 on node n0",
        ],
        (3,),
    ),
    "RAS, behind": (
        [
            *RAS.splitlines(),
            "#0-0 (d9e1b0a6a4f8d2c1) MISMATCH",
            "  Communicator ranks have different AllReduce operation counts",
            "  7 ranks have launched up to operation 6650",
            "  Rank 6 has launched up to operation 6649 -- GPU 2 managed by process 417 on node n1",
        ],
        (6,),
    ),
    "RAS, went on": (
        [
            "#0-0 (d9e1b0a6a4f8d2c1) MISMATCH",
            "  Communicator ranks have different Broadcast operation counts",
            "  7 ranks have not launched any operations",
            "  Rank 6 has launched up to operation 1 -- GPU 2 managed by process 417 on node n1",
        ],
        (),
    ),
    "COLL trace, behind": ([line for r in range(4) for line in traced(r, "AllReduce", "f7" if r != 1 else "f6")], (1,)),
    "COLL trace, another call": (
        [line for r in range(4) for line in traced(r, "AllReduce" if r != 2 else "AllGather", "f7")],
        (2,),
    ),
    "COLL trace, another size": (
        [line for r in range(4) for line in traced(r, "AllReduce", "f7", size=64 if r else 65)],
        (0,),
    ),
    "COLL trace, all the same": ([line for r in range(4) for line in traced(r, "AllReduce", "f7")], ()),
    "healthy": (["step 3 loss 2.1", "[rank0]: saved", "NCCL INFO Connected all rings", "world_size=8"], ()),
}


@pytest.mark.parametrize("case", CASES)
def test_who_is_odd_is_named_and_nobody_else(case):
    lines, expected = CASES[case]
    claims = merge([ToolText().read(lines)])
    verdict = diagnose(Case(at=100.0, ranks=(), world=(), claims=claims)).verdict
    assert verdict.ranks == expected
    assert verdict.sentence


@pytest.mark.parametrize("case", CASES)
def test_lines_of_schedulers_and_stamps_around_change_nothing(case):
    lines, expected = CASES[case]
    if case.startswith("RAS"):
        around = ["slurmstepd: error: *** STEP 12.0 ON n0 CANCELLED ***", *lines, "", "pod/train-0 Terminated"]
    else:
        around = [text for line in lines for text in ("", f"train-0 | {line}", "I0621 kubelet: pod is running")]
    claims = merge([ToolText().read(around)])
    assert diagnose(Case(at=100.0, ranks=(), world=(), claims=claims)).verdict.ranks == expected


def test_one_file_per_rank_says_the_same_as_one_for_all():
    lines, expected = CASES["behind"]
    claims = merge([ToolText(rank).read([line.partition("]:")[2]]) for rank, line in enumerate(lines)])
    assert diagnose(Case(at=100.0, ranks=(), world=(), claims=claims)).verdict.ranks == expected


def test_only_a_fingerprint_or_a_record_makes_it_sure():
    for case, (lines, _) in CASES.items():
        verdict = diagnose(Case(at=100.0, ranks=(), world=(), claims=ToolText().read(lines))).verdict
        if not case.startswith(("fingerprint, ", "torchfrtrace")):
            assert verdict.confidence is not Confidence.HIGH, case


def running(rank: int, seq: int) -> str:
    """What each rank says of each collective where details are asked for."""
    call = f"CollectiveFingerPrint(SequenceNumber={seq}, OpType=ALLREDUCE, TensorShape=[64], TensorDtypes=Float)"
    return f"[I ProcessGroupWrapper.cpp:562] [Rank {rank}] Running collective: {call}"


def test_what_ranks_say_of_themselves_spoils_no_log():
    """It names no rank that differs, and the rest of the log is read."""
    lines = [running(0, 20), *(caught(rank) for rank in (0, 1, 3)), running(1, 20), running(3, 20)]
    claims = ToolText().read(lines)
    assert claims.calls == ()
    assert diagnose(Case(at=100.0, ranks=(), world=(), claims=claims)).verdict.ranks == (2,)


def test_a_fingerprint_with_other_numbers_is_of_one_place():
    line = fingerprint(0, "ALLREDUCE", 1, "ALLREDUCE").replace("SequenceNumber=21", "SequenceNumber=23", 1)
    verdict = diagnose(Case(at=100.0, ranks=(), world=(), claims=ToolText().read([line]))).verdict
    assert verdict.code == "ES-H03"
    assert verdict.ranks == (0, 1)
    assert "#23" in verdict.sentence
    assert "#21" in verdict.sentence


def test_garbage_is_read_in_bounded_time():
    text = ["[Rank 1] " * 400, "Rank 1 is running collective: CollectiveFingerPrint(" * 80, "opCount NCCL INFO " * 200]
    assert ToolText().read(text * 200).works == ()


def sized(rank: int, numel: int, op: str = "ALLREDUCE") -> str:
    return caught(rank, op=op).replace("NumelIn=8, NumelOut=8", f"NumelIn={numel}, NumelOut={numel}")


@pytest.mark.parametrize(
    ("lines", "code", "ranks"),
    [
        ([sized(0, 4000), sized(1, 1), status(1)], "ES-H04", (0, 1)),
        ([*(sized(rank, 4000) for rank in (0, 1, 2)), sized(3, 64), status(0)], "ES-H04", (3,)),
        ([sized(0, 8), sized(1, 8, "ALLGATHER"), status(1)], "ES-H03", (0, 1)),
        ([sized(0, 8), sized(1, 8), status(1)], "ES-H11", ()),
        ([sized(0, 4000, "ALLTOALL"), sized(1, 1, "ALLTOALL"), status(1)], "ES-H11", ()),
        ([sized(0, 8, "SEND"), sized(1, 8, "RECV"), status(1)], "ES-H11", ()),
    ],
    ids=["two sizes", "one of four", "two operations", "the same", "sizes that may differ", "two ends"],
)
def test_calls_of_one_place_that_cannot_belong_together(lines, code, ranks):
    """Where a line names no group, and only one is named at all, it is of that."""
    verdict = diagnose(Case(at=100.0, ranks=(), world=(), claims=ToolText().read(lines))).verdict
    assert (verdict.code, verdict.ranks) == (code, ranks)
    assert code != "ES-H11" or verdict.blame is Blame.UNKNOWN, "logs alone do not tell that it is the network"


def test_sizes_of_groups_that_nobody_names_are_not_compared():
    """Stages of a pipeline are at one number with tensors of their own. Two ranks have one group."""
    for sizes, code in (((4000, 4000, 1, 1), "ES-H11"), ((4000, 1), "ES-H04")):
        lines = [sized(rank, size) for rank, size in enumerate(sizes)]
        assert diagnose(Case(at=100.0, ranks=(), world=(), claims=ToolText().read(lines))).verdict.code == code


def of_group(tag: int, place: int, op: str = "ALLREDUCE") -> str:
    """Rank `tag` of the job is number `place` of a group of its own."""
    return caught(tag, op=op).replace(f"[Rank {tag}]", f"[PG ID 1 PG GUID 5(tp) Rank {place}]")


def test_the_number_behind_a_groups_name_is_the_place_in_it_and_no_rank_of_the_job():
    lines = [of_group(4, 0), of_group(5, 1), of_group(6, 2, "BARRIER"), of_group(7, 3)]
    assert all("PG GUID 5(tp) Rank" in line for line in lines)
    verdict = diagnose(Case(at=100.0, ranks=(), world=(), claims=ToolText().read(lines))).verdict
    assert verdict.ranks == (6,)


@pytest.mark.parametrize(
    "groups",
    [
        [[0, 1], [2, 3], [4, 5], [6, 7]],
        [[0, 1, 2, 3, 4, 5, 6], [7]],
    ],
    ids=["pairs", "one in a group of its own"],
)
def test_numbers_of_several_groups_are_not_compared(tmp_path, groups):
    """Each group counts for itself: who is at #101 of one is not behind who is at #500 of another."""
    for number, ranks in enumerate(groups):
        for place, rank in enumerate(ranks):
            line = caught(rank, seq=500 - 100 * number).replace(
                f"[Rank {rank}]", f"[PG ID 1 PG GUID {number}(of_some) Rank {place}]"
            )
            (tmp_path / f"rank-{rank}.log").write_text(line + "\n")
    read = read_folder(tmp_path, 1.8e9)
    verdict = overall(read.case, read.points, read.known).verdict
    assert verdict.ranks == ()
    assert "earlier place" not in verdict.sentence
    assert f"({8 - len(groups[0])} more in other groups)" in verdict.sentence


def test_of_several_groups_no_single_place_is_told():
    lines = [of_group(rank, rank) for rank in range(3)] + [
        caught(4, seq=3).replace("[Rank 4]", "[PG ID 2 PG GUID 9 Rank 0]")
    ]
    verdict = diagnose(Case(at=100.0, ranks=(), world=(), claims=ToolText().read(lines))).verdict
    assert verdict.ranks == (3,)
    assert "4 ranks did in several groups" in verdict.sentence


@pytest.mark.parametrize("last", ["OpType=ALLRED", "NumelIn=8", "NumelOut=80"])
def test_a_line_that_is_cut_off_accuses_nobody(last):
    """Its end is missing: of what was written there, nothing is known."""
    lines = [sized(rank, 8000) for rank in range(4)]
    lines[3] = lines[3][: lines[3].index(last) + len(last)]
    lines.append(status(0))
    verdict = diagnose(Case(at=100.0, ranks=(), world=(), claims=ToolText().read(lines))).verdict
    assert (verdict.code, verdict.ranks) == ("ES-H11", ())


@pytest.mark.parametrize("cut", ["ALLRED", "[64", "Flo"])
def test_a_fingerprint_that_is_cut_off_accuses_nobody(cut):
    form = "CollectiveFingerPrint(SequenceNumber=7, OpType=ALLREDUCE, TensorShape=[64], TensorDtypes=Float)"
    said = f"RuntimeError: Rank 0 is running collective: {form}, but Rank 1 is running collective: {form}"
    line = said[: said.rindex(cut) + len(cut)]
    assert diagnose(Case(at=100.0, ranks=(), world=(), claims=ToolText().read([line]))).verdict.ranks == ()
