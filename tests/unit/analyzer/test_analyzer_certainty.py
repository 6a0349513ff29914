"""Certain or doubtful: who could end a wait decides, and what is not known could."""

import msgspec
import pytest

from everstep.analyzer.hangs.certainty import judge
from everstep.analyzer.hangs.openers import ACCEPTS
from everstep.analyzer.observations.clusters import Activity
from everstep.analyzer.observations.finding import Finding
from everstep.analyzer.observations.records import Frame, Hold, ProcessStack, RankEvidence, Thread, ThreadWait
from everstep.model.verdict import Certainty, Confidence

PID = 100
DOING = {0: Activity.COLLECTIVE, 1: Activity.BLOCKED}


def wait(hold: Hold, tid: int = PID, pid: int = PID, name: str = "python", **more) -> ThreadWait:
    return ThreadWait(pid=pid, tid=tid, name=name, hold=hold, **more)


def python(tid: int, *files: str, name: str = "Thread-1", **more) -> Thread:
    frames = tuple(Frame("run", file, 7, "/" not in file) for file in files)
    return Thread(name=name, frames=frames, tid=tid, **more)


MAIN = python(PID, "threading.py", "train.py", name="MainThread")


def rank(rank: int, *waits: ThreadWait, threads: tuple[Thread, ...] = (MAIN,), state: str = "S") -> RankEvidence:
    return RankEvidence(
        rank=rank, waits=waits, states=((PID, state),), processes=(ProcessStack(pid=PID, threads=threads),)
    )


def judged(*waits: ThreadWait, threads: tuple[Thread, ...] = (MAIN,), code: str = "ES-H02", limit_s: float = 1800.0):
    others = rank(0, wait(Hold.LOCK))
    finding = Finding(code=code, sentence="it hangs.", confidence=Confidence.HIGH, ranks=(1,))
    return judge(finding, {0: others, 1: rank(1, *waits, threads=threads)}, DOING, (0, 1), limit_s)


@pytest.mark.parametrize("code", ["ES-H03", "ES-H05"])
def test_what_cannot_meet_is_certain(code):
    finding = Finding(code=code, sentence="differs.", confidence=Confidence.LOW, ranks=(1,))
    both = dict.fromkeys((0, 1), Activity.COLLECTIVE)
    assert judge(finding, {}, both, (0, 1)).certainty is Certainty.CERTAIN


def test_an_operation_that_nobody_waits_for_makes_no_circle():
    finding = Finding(code="ES-H05", sentence="circle.", confidence=Confidence.HIGH, ranks=(0, 1))
    assert judge(finding, {}, {0: Activity.COLLECTIVE, 1: Activity.PYTHON}, (0, 1)).certainty is Certainty.DOUBTFUL


def test_one_stopped_process_is_certain_and_all_of_them_are_somebody_at_a_terminal():
    finding = Finding(code="ES-H01", sentence="stopped.", confidence=Confidence.HIGH, ranks=(1,))
    stopped, alive = rank(1, state="T"), rank(0)
    assert judge(finding, {0: alive, 1: stopped}, DOING, (0, 1)).certainty is Certainty.CERTAIN
    both = {0: rank(0, state="T"), 1: stopped}
    assert judge(finding, both, DOING, (0, 1)).certainty is Certainty.DOUBTFUL


LIBRARY = [
    wait(Hold.OUTSIDE, 101, name="gloo_tcp_loop"),
    wait(Hold.NOTHING, 102, name="gloo_tcp_loop"),
    wait(Hold.LOCK, 103, name="pt_gloo_runloop"),
    wait(Hold.LOCK, 104),  # a pool of OpenMP
    wait(Hold.TIMED, 105, name="pt_autograd_0"),
    wait(Hold.OUTSIDE, 106, name="everstep-watch"),
]


@pytest.mark.parametrize(
    "more",
    [
        LIBRARY,
        [*LIBRARY, wait(Hold.LOCK, 107), wait(Hold.LOCK, 200, pid=200)],
        [*LIBRARY, wait(Hold.OWN, 200, pid=200), wait(Hold.OUTSIDE, 201, pid=200, what=ACCEPTS)],
        [*LIBRARY, wait(Hold.STOPPED, 200, pid=200)],
    ],
    ids=["libraries only", "a thread and a child in locks", "a child that waits for work", "a stopped child"],
)
@pytest.mark.parametrize("own", [Hold.LOCK, Hold.OWN])
def test_a_lock_that_nobody_can_open_is_certain(own, more):
    verdict = judged(wait(own), *more)
    assert verdict.certainty is Certainty.CERTAIN, verdict.because
    assert "no thread and no process of it can open" in verdict.because


@pytest.mark.parametrize("doing", [Activity.COLLECTIVE, Activity.BACKWARD])
@pytest.mark.parametrize("own", [Hold.LOCK, Hold.OWN])
def test_whoever_is_named_and_waits_for_the_others_may_still_be_answered(own, doing):
    finding = Finding(code="ES-H18", sentence="it stands.", confidence=Confidence.HIGH, ranks=(1,))
    both = {0: rank(0, wait(Hold.TIMER, what="sleeps", left_s=4.0)), 1: rank(1, wait(own), *LIBRARY)}
    verdict = judge(finding, both, {0: Activity.BLOCKED, 1: doing}, (0, 1))
    assert (verdict.certainty, verdict.computes) == (Certainty.DOUBTFUL, False)
    assert "rank 1 waits for the other ranks" in verdict.because


@pytest.mark.parametrize(
    ("other", "because", "computes"),
    [
        (wait(Hold.OUTSIDE, 107, what="waits for a socket"), "waits for a socket", False),
        (wait(Hold.TIMER, 107, what="sleeps", left_s=40.0), "sleeps for 40 s more", False),
        (wait(Hold.TIMED, 107), "waits with a time limit", False),
        (wait(Hold.NOTHING, 107), "works", True),
        (wait(Hold.DISK, 107, what="waits for a disk"), "waits for a disk", False),
        (wait(Hold.UNKNOWN, 107), "may do something", False),
        (wait(Hold.NOTHING, 107, name="pt_autograd_0"), "works", True),
        (wait(Hold.TIMER, 200, pid=200, what="sleeps", left_s=9.0), "its process, which sleeps", False),
        (wait(Hold.UNKNOWN, 0, name="more threads"), "more threads", False),
    ],
    ids=str,
)
def test_somebody_who_could_open_it_lends_his_own_wait(other, because, computes):
    verdict = judged(wait(Hold.LOCK), *LIBRARY, other)
    assert (verdict.certainty, verdict.computes) == (Certainty.DOUBTFUL, computes)
    assert because in verdict.because


@pytest.mark.parametrize(
    ("file", "hold"),
    [
        ("tqdm/_monitor.py", Hold.TIMED),
        ("torch/utils/data/_utils/pin_memory.py", Hold.TIMED),
        ("tensorboard/summary/writer/event_file_writer.py", Hold.TIMED),
        ("everstep/worker/link/watch.py", Hold.OUTSIDE),
        ("concurrent/futures/thread.py", Hold.LOCK),
    ],
)
def test_threads_that_serve_nobody_open_nothing(file, hold):
    threads = (MAIN, python(107, "threading.py", file))
    assert judged(wait(Hold.LOCK), wait(hold, 107), threads=threads).certainty is Certainty.CERTAIN


def test_whoever_holds_the_interpreter_keeps_its_other_threads_from_everything():
    keeper = msgspec.structs.replace(MAIN, owns_gil=True)
    waits = (wait(Hold.LOCK), wait(Hold.TIMED, 107))
    threads = (keeper, python(107, "train.py"))
    assert judged(*waits, threads=threads).certainty is Certainty.CERTAIN
    assert judged(*waits, threads=(MAIN, threads[1])).certainty is Certainty.DOUBTFUL
    native = wait(Hold.OUTSIDE, 108)
    assert judged(*waits, native, threads=threads).certainty is Certainty.DOUBTFUL, "it needs no interpreter"


@pytest.mark.parametrize(("left_s", "blame"), [(0.4, "environment"), (3600.0, None), (None, None)])
def test_a_rank_at_its_limit_of_cpu_time_is_ended_by_the_limit(left_s, blame):
    busy = msgspec.structs.replace(rank(1, wait(Hold.NOTHING, what="works"), state="R"), cpu_left_s=left_s)
    finding = Finding(code="ES-H02", sentence="", confidence=Confidence.HIGH, ranks=(1,))
    found = judge(finding, {1: busy}, {1: Activity.PYTHON}, (0, 1))
    assert (found.certainty, found.computes, found.blame) == (Certainty.DOUBTFUL, True, blame)
    assert ("limit of its CPU time" in found.because) is (blame is not None)


def test_a_timer_is_no_hope_where_it_outlasts_the_others():
    soon, late = (wait(Hold.TIMER, what="sleeps", left_s=left) for left in (500.0, 90_000.0))
    assert judged(soon).certainty is Certainty.DOUBTFUL
    assert judged(late).certainty is Certainty.CERTAIN
    assert judged(soon, limit_s=60.0).certainty is Certainty.CERTAIN


@pytest.mark.parametrize("more", [{"pid": 200, "tid": 200}, {"tid": 107}])
def test_who_sleeps_that_long_is_no_hope_for_whoever_waits_for_it(more):
    """A pool of processes that all sleep: nobody else could open it, and the others may not wait so long."""
    soon, late = (wait(Hold.TIMER, what="sleeps", left_s=left, **more) for left in (500.0, 90_000.0))
    answers = wait(Hold.OUTSIDE, 109, what="waits for a socket")
    assert judged(wait(Hold.LOCK), soon).certainty is Certainty.DOUBTFUL
    found = judged(wait(Hold.LOCK), late)
    assert (found.certainty, found.blame) == (Certainty.CERTAIN, "user")
    assert "which sleeps for 1500 min more, longer than the others may wait" in found.because
    assert judged(wait(Hold.LOCK), late, answers).certainty is Certainty.DOUBTFUL, "another one could"
    timed = wait(Hold.TIMED, what="waits with a time limit", left_s=90_000.0, **more)
    assert judged(wait(Hold.LOCK), timed).certainty is Certainty.DOUBTFUL, "it may be woken before"
    assert judged(wait(Hold.TIMED, left_s=90_000.0), soon).certainty is Certainty.DOUBTFUL


LOCKED = {"hold": Hold.OUTSIDE, "what": "waits for a lock on /hub/x.lock, held by python (pid 300)", "holders": (300,)}


def in_collective(number: int, *more: ThreadWait) -> RankEvidence:
    held = rank(number, wait(Hold.LOCK, 300, 300), *more, threads=(python(300, "train.py", name="MainThread"),))
    return msgspec.structs.replace(held, states=((300, "S"),))


def crossed(holder: RankEvidence, held_by: tuple[int, ...] = (0,), doing=DOING):
    waits = rank(1, wait(**LOCKED, held_by=held_by))
    finding = Finding(code="ES-H02", sentence="", confidence=Confidence.HIGH, ranks=(1,))
    return judge(finding, {0: holder, 1: waits}, doing, (0, 1), 1800.0)


def test_a_file_lock_that_a_waiting_rank_holds_is_never_released():
    """Rank 0 downloads under a lock and meets the others within it."""
    found = crossed(in_collective(0))
    assert (found.certainty, found.blame) == (Certainty.CERTAIN, "user")
    assert "held by python (pid 300): that is rank 0, which waits for the other ranks" in found.because
    works = in_collective(0, wait(Hold.NOTHING, 301, 300, "downloads"))
    assert crossed(works).certainty is Certainty.DOUBTFUL, "another thread of it could"
    assert crossed(in_collective(0), held_by=()).certainty is Certainty.DOUBTFUL, "a process of somebody else"
    assert crossed(in_collective(0), held_by=(0, 7)).certainty is Certainty.DOUBTFUL, "one of the holders is not known"
    assert crossed(in_collective(0), doing={0: Activity.PYTHON, 1: Activity.BLOCKED}).certainty is Certainty.DOUBTFUL


@pytest.mark.parametrize(
    ("hold", "more", "certainty"),
    [
        (Hold.LOCK, {}, Certainty.CERTAIN),
        (Hold.OWN, {}, Certainty.CERTAIN),
        (Hold.NOTHING, {}, Certainty.DOUBTFUL),
        (Hold.OUTSIDE, {"what": "waits for a socket"}, Certainty.DOUBTFUL),
        (Hold.TIMER, {"what": "sleeps", "left_s": 5.0}, Certainty.DOUBTFUL),
        (Hold.TIMER, {"what": "sleeps", "left_s": 90_000.0}, Certainty.CERTAIN),
    ],
)
def test_a_file_lock_of_a_process_of_its_own_is_as_good_as_that_one(hold, more, certainty):
    holder = wait(hold, 300, 300, **more)
    assert judged(wait(**LOCKED, held_by=(1,)), holder).certainty is certainty


def test_a_loader_asks_again_and_again_and_only_its_processes_can_answer():
    asking = (python(PID, "multiprocessing/queues.py", "torch/utils/data/dataloader.py", name="MainThread"),)
    in_lock, reads = wait(Hold.LOCK, 200, pid=200), wait(Hold.OUTSIDE, 200, pid=200, what="waits for /data/7")
    assert judged(wait(Hold.TIMED), in_lock, threads=asking).certainty is Certainty.CERTAIN
    assert judged(wait(Hold.TIMED), reads, threads=asking).certainty is Certainty.DOUBTFUL
    assert judged(wait(Hold.TIMED), in_lock).certainty is Certainty.DOUBTFUL, "a time limit of its own"


@pytest.mark.parametrize(
    ("left_s", "moved", "certainty"),
    [
        (5.0, False, Certainty.CERTAIN),  # a loader's process, a server: it asks for work, and gives nothing else
        (5.0, True, Certainty.DOUBTFUL),
        (60.0, False, Certainty.DOUBTFUL),
        (None, False, Certainty.DOUBTFUL),
    ],
)
def test_another_that_asks_its_pipe_every_few_seconds_opens_nothing(left_s, moved, certainty):
    other = wait(Hold.TIMED, 200, pid=200, left_s=left_s, moved=moved)
    assert judged(wait(Hold.LOCK), *LIBRARY, other).certainty is certainty
    assert judged(wait(Hold.TIMED, left_s=left_s), *LIBRARY).certainty is Certainty.DOUBTFUL, "it is the main thread"


def test_everybody_at_the_store_is_certain_unless_a_thread_could_set_the_key():
    store = wait(Hold.OUTSIDE, what="waits for the job's own store", is_store=True)
    finding = Finding(code="ES-H16", sentence="all wait.", confidence=Confidence.MEDIUM)
    doing = dict.fromkeys((0, 1), Activity.COLLECTIVE)
    ranks = {each: rank(each, store, *LIBRARY) for each in (0, 1)}
    assert judge(finding, ranks, doing, (0, 1)).certainty is Certainty.CERTAIN
    assert judge(finding, ranks, doing, (0, 1, 2)).certainty is Certainty.DOUBTFUL, "one was not seen"
    ranks[1] = rank(1, store, wait(Hold.NOTHING, 107))
    assert judge(finding, ranks, doing, (0, 1)).certainty is Certainty.DOUBTFUL


def test_what_was_not_seen_is_doubtful():
    assert judged().certainty is Certainty.DOUBTFUL
    stalled = Finding(code="ES-H11", sentence="stalled.", confidence=Confidence.LOW)
    both = dict.fromkeys((0, 1), Activity.COLLECTIVE)
    assert judge(stalled, {0: rank(0), 1: rank(1)}, both, (0, 1)).certainty is Certainty.DOUBTFUL


def test_who_was_on_a_processor_between_two_looks_waits_for_something_that_comes():
    """A thread that has just been given what it waited for looks like one that never will."""
    own = judged(wait(Hold.LOCK, moved=True), *LIBRARY)
    assert (own.certainty, own.computes) == (Certainty.DOUBTFUL, True)
    another = judged(wait(Hold.LOCK), wait(Hold.LOCK, 107, moved=True))
    assert (another.certainty, another.computes) == (Certainty.DOUBTFUL, True)
    served = judged(wait(Hold.LOCK), wait(Hold.LOCK, 107, name="pt_gloo_runloop", moved=True))
    assert served.certainty is Certainty.CERTAIN, "it moves for nobody's locks"


def test_a_loaders_process_that_looks_whether_its_rank_lives_opens_nothing():
    asking = python(PID, "torch/utils/data/dataloader.py", name="MainThread")
    idle = python(200, "multiprocessing/connection.py", "torch/utils/data/_utils/worker.py", name="MainThread")
    waits = (wait(Hold.TIMED, moved=True), wait(Hold.OWN, 200, pid=200, moved=True))
    assert judged(*waits, threads=(asking, idle)).certainty is Certainty.CERTAIN
