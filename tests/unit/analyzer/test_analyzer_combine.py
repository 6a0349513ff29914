"""Stacks, clusters, loads, and all evidence together."""

import pytest

from everstep.analyzer.codes import CODES, name_of
from everstep.analyzer.hangs.combine import diagnose
from everstep.analyzer.hangs.metrics import odd_ones_out
from everstep.analyzer.numbers.series import Point
from everstep.analyzer.observations.clusters import Activity, activity_of, cluster, signature
from everstep.analyzer.observations.records import (
    Case,
    Collective,
    Entries,
    FlightRecord,
    Frame,
    ParallelGroup,
    ProcessStack,
    RankEvidence,
    RankLoad,
    Thread,
)
from everstep.analyzer.observations.words import fold, ranks_text
from everstep.analyzer.overall import overall
from everstep.analyzer.reading import stacks
from everstep.analyzer.reading.pickled import UnreadableError
from everstep.model.verdict import Blame

C10D = Frame("all_reduce", "torch/distributed/distributed_c10d.py", 3252, False)
POLL = Frame("select", "selectors.py", 415, False)
QUEUE = Frame("Queue.get", "multiprocessing/queues.py", 113, False)
LOADER = Frame("_get_data", "torch/utils/data/dataloader.py", 1464, False)
FETCH = Frame("fetch", "torch/utils/data/_utils/fetch.py", 54, False)
ROOT = Frame("<module>", "train.py", 99, True)


def step(line=30):
    return Frame("step", "train.py", line, True)


def thread(*frames, active=False, gil=False):
    return Thread(name="MainThread", frames=frames, active=active, owns_gil=gil)


WAITS = thread(C10D, step(), ROOT)
LOOPS = thread(Frame("spin", "train.py", 12, True), ROOT, active=True, gil=True)


@pytest.mark.parametrize(
    ("given", "activity"),
    [
        (WAITS, Activity.COLLECTIVE),
        (LOOPS, Activity.PYTHON),
        (thread(step(), ROOT, gil=True), Activity.NATIVE),
        (thread(step(), ROOT), Activity.BLOCKED),
        (thread(step(), ROOT, active=True), Activity.UNKNOWN),
        (thread(POLL, QUEUE, LOADER, ROOT), Activity.LOADER),
        (thread(Frame("save", "torch/serialization.py", 9, False), ROOT), Activity.SAVING),
        (thread(Frame("run", "torch/autograd/graph.py", 9, False), ROOT), Activity.COLLECTIVE),
        (thread(Frame("run", "torch/autograd/graph.py", 9, False), ROOT, active=True), Activity.BACKWARD),
        (thread(), Activity.UNKNOWN),
    ],
)
def test_what_a_main_thread_is_doing(given, activity):
    assert activity_of(given) is activity


def test_noise_does_not_split_a_place_and_meaning_does():
    here = signature([C10D, step(), ROOT])
    assert signature([POLL, QUEUE, LOADER, ROOT]) == signature([LOADER, ROOT])
    assert signature([Frame("all_reduce", C10D.file, 1, False), step(), ROOT]) == here
    assert signature([C10D, step(31), ROOT]) != here  # another collective of the same function
    assert signature([step(1), ROOT]) == signature([step(2), ROOT])  # executing
    assert signature([C10D, step(), step(), ROOT]) == here  # recursion


def test_the_large_clusters_are_healthy_and_the_rest_outliers():
    stages = {rank: thread(C10D, step(rank // 8), ROOT) for rank in range(32)}
    found = cluster(stages | {5: LOOPS})
    assert found.outlier_ranks == (5,)
    assert len(found.healthy) == 4
    assert cluster(stages).outliers == ()
    assert cluster({}).healthy == ()
    two = cluster({0: WAITS, 1: LOOPS})
    assert (two.outliers, len(two.healthy)) == ((), 2)


def evidence(rank, main=WAITS, **more):
    return RankEvidence(rank=rank, processes=(ProcessStack(pid=100 + rank, threads=(main,)),), **more)


def case(*ranks, world=()):
    return Case(at=1000.0, ranks=ranks, world=world)


def test_one_of_two_that_does_not_wait_is_named():
    found = diagnose(case(evidence(0), evidence(1, LOOPS))).verdict
    assert (found.code, found.ranks, found.confidence, found.place) == ("ES-H07", (1,), "medium", "train.py:12 spin")


def test_a_blocked_loader_names_what_its_worker_reads():
    worker = ProcessStack(
        pid=900, threads=(thread(Frame("__getitem__", "data.py", 5, True), FETCH, QUEUE),), parent=101
    )
    culprit = evidence(1, thread(POLL, QUEUE, LOADER, ROOT), states=((101, "S"), (900, "D")))
    culprit = RankEvidence(rank=1, processes=(*culprit.processes, worker), states=culprit.states)
    found = diagnose(case(evidence(0), culprit, evidence(2))).verdict
    assert (found.code, found.ranks) == ("ES-H06", (1,))
    assert "worker process 900 reads at data.py:5 __getitem__ and is in uninterruptible sleep" in found.sentence


@pytest.mark.parametrize(("letter", "code"), [("T", "ES-H01"), ("D", "ES-H09")])
def test_process_states(letter, code):
    busy = evidence(2, thread(step(), ROOT), states=((102, letter),))
    found = diagnose(case(evidence(0), evidence(1), busy)).verdict
    assert (found.code, found.ranks) == (code, (2,))


def test_a_tracing_stop_is_py_spys_own():
    watched = [evidence(rank, states=((100 + rank, "t"),)) for rank in range(3)]
    assert diagnose(case(*watched)).verdict.ranks == ()


def test_stack_outliers_lead_to_the_group_that_they_share():
    """ByteRobust's figure 7 from stacks, with the groups from the flight records."""
    pp = [ParallelGroup(name=f"p{i}", kind="pp", ranks=tuple(range(4 * i, 4 * i + 4)), complete=True) for i in range(4)]
    dp = [ParallelGroup(name=f"d{i}", kind="dp", ranks=tuple(range(i, 16, 4)), complete=True) for i in range(4)]

    def record(rank):
        return FlightRecord(rank=rank, groups=(pp[rank // 4], dp[rank % 4]))

    odd = {12: 51, 13: 51, 14: 52, 15: 53}
    ranks = [evidence(r, thread(C10D, step(odd.get(r, 30)), ROOT), flight=record(r)) for r in range(16)]
    found = diagnose(case(*ranks))
    assert (found.verdict.code, found.verdict.ranks, found.group) == ("ES-H12", (12, 13, 14, 15), pp[3])


def test_idle_among_busy_and_busy_among_idle():
    idle = odd_ones_out({r: RankLoad(gpu_share=0.0 if r == 3 else 1.0) for r in range(8)})
    assert [(o.ranks, o.idle, o.source) for o in idle] == [((3,), True, "GPU")]
    busy = odd_ones_out({r: RankLoad(cpu_share=0.99 if r == 3 else 0.01) for r in range(8)})
    assert [(o.ranks, o.idle) for o in busy] == [((3,), False)]
    assert odd_ones_out({r: RankLoad(cpu_share=r / 8) for r in range(8)}) == []
    assert odd_ones_out({r: RankLoad() for r in range(8)}) == []
    assert odd_ones_out({0: RankLoad(cpu_share=1), 1: RankLoad(cpu_share=0)}) == []
    found = diagnose(case(*(RankEvidence(rank=r, load=RankLoad(gpu_share=0.0 if r == 3 else 1.0)) for r in range(8))))
    assert (found.verdict.code, found.verdict.ranks, found.verdict.confidence) == ("ES-H13", (3,), "low")


def test_the_rank_that_did_not_time_out():
    ranks = [RankEvidence(rank=r, waits_at=None if r == 2 else ("allreduce", 90412)) for r in range(4)]
    found = diagnose(case(*ranks)).verdict
    assert found.ranks == (2,)
    assert "allreduce #90412" in found.sentence


def test_nothing_says_what_is_missing():
    found = diagnose(case(world=(0, 1))).verdict
    assert (found.code, found.ranks, found.confidence) == ("ES-H15", (), "low")
    ended = diagnose(case(RankEvidence(rank=0, last_output="x\nRuntimeError: gloo says no"))).verdict
    assert any("RuntimeError: gloo says no" in e.says for e in ended.evidence)


def test_a_young_wait_is_a_running_job():
    def waiting(age, rank):
        entry = Collective(group="0", seq=1, op="all_reduce", record_id=0, completed=False, created_at=1000.0 - age)
        group = ParallelGroup(name="0", kind="world", ranks=(0, 1), complete=True)
        return RankEvidence(
            rank=rank, flight=FlightRecord(rank=rank, entries=Entries.of([entry] if rank == 0 else []), groups=(group,))
        )

    assert diagnose(case(waiting(0.3, 0), waiting(0.3, 1))).verdict.code == "ES-H00"
    assert diagnose(case(waiting(3.0, 0), waiting(3.0, 1))).verdict.ranks == (1,)


def test_numbers_are_the_verdict_only_when_nothing_hangs():
    nan = {"log": [Point(step=1, loss=float("nan"))]}
    assert overall(case(), nan).verdict.code == "ES-N01"
    hung = overall(case(evidence(0), evidence(1, LOOPS)), nan)
    assert hung.verdict.code == "ES-H07"
    assert [f.code for f in hung.findings][-1] == "ES-N01"
    slow = {"log": [Point(step=10 * i, step_s=1.0 if i < 30 else 1.5) for i in range(60)]}
    found = overall(case(), slow).verdict
    assert found.code == "ES-S03"
    assert "since step 300" in found.sentence


def test_text_and_json_of_py_spy_say_the_same():
    text = (
        "Process 812: python train.py --x\nPython v3.11.7 (/usr/bin/python3.11)\nParent Process 800: python\n\n"
        'Thread 812 (active+gil): "MainThread"\n    spin (train.py:12)\n    <module> (train.py:99)\n'
        'Thread 0x7F01 (idle): "Thread-1 (x)"\n    wait (threading.py:327)\n'
    )
    (process,) = stacks.from_text(text)
    assert (process.pid, process.parent, process.command) == (812, 800, "python train.py --x")
    assert process.threads[0] == LOOPS
    frames = [
        {"name": f.name, "filename": f"/home/u/{f.file}", "short_filename": f.file, "line": f.line}
        for f in LOOPS.frames
    ]
    raw = [{"pid": 812, "thread_name": "MainThread", "active": True, "owns_gil": True, "frames": frames}]
    assert stacks.from_json(raw)[0].threads[0] == LOOPS


@pytest.mark.parametrize("raw", [{}, [1], [{"pid": 1}], [{"frames": []}], [{"pid": 1, "frames": [{}]}]])
def test_stack_dumps_that_are_none(raw):
    with pytest.raises(UnreadableError):
        stacks.from_json(raw)


def test_every_code_has_its_page():
    for code, entry in CODES.items():
        assert entry.code == code
        assert name_of(code) == f"{code} {entry.name}"
        assert all((entry.means, entry.everstep_does, entry.confirm, entry.you_do))
        assert entry.blame in set(Blame)
    assert len({entry.name for entry in CODES.values()}) == len(CODES)


def test_very_many_ranks_fill_no_page():
    assert fold([0, 1, 2, 7]) == "0-2,7"
    assert fold(range(0, 20_000, 2)).startswith("0,2,4,")
    assert fold(range(0, 20_000, 2)).endswith(",124,126 and 9,936 more")
    assert fold(range(100_000)) == "0-99999"
    assert len(ranks_text(range(0, 2_000_000, 2))) < 1_000
