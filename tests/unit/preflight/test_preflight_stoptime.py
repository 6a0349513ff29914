"""What examinations decide without a process: layouts on few ranks, who computed wrongly, what a node says."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.agent.exams.examinees import Examinee
from everstep.agent.exams.examining import summed_up
from everstep.agent.processes.ailments import Ailments
from everstep.core.faults.drills import why_bad_options
from everstep.linux.children import Ended
from everstep.model.actions import ExamineNode, Inject
from everstep.model.facts import ExamKind
from everstep.preflight.examination.compare import compare
from everstep.preflight.examination.layout import fit
from everstep.preflight.examination.request import Said

SHAPES = st.permutations(("pp", "dp", "tp")).flatmap(
    lambda names: st.tuples(*(st.tuples(st.just(name), st.sampled_from((1, 2, 3, 4, 8))) for name in names))
)


@given(SHAPES, st.integers(min_value=1, max_value=48))
def test_a_layout_has_every_stage_and_shard_and_every_rank_one_place(shape, world):
    layout = fit(shape, world)
    assert math.prod(size for _, size in layout.axes) == world
    assert len({tuple(sorted(layout.place(rank).items())) for rank in range(world)}) == world
    for axis in ("tp", "pp", "dp"):
        assert sorted(itertools.chain(*layout.lines(axis))) == list(range(world))
        assert all(rank in layout.line(rank, axis) for rank in range(world))
    computed = {(stage, layout.shard(rank)) for rank in range(world) for stage in layout.stages(rank)}
    assert computed == set(itertools.product(range(dict(shape)["pp"]), range(layout.size("tp"))))
    for rank in range(world):
        assert {layout.holder(stage) for stage in layout.stages(rank)} == {layout.place(rank).get("pp", 0)}


def test_tp_and_pp_are_kept_where_they_fit_and_the_order_is_the_jobs():
    job = (("pp", 2), ("dp", 8), ("tp", 2))
    assert fit(job, 12).words() == "pp 2, dp 3, tp 2"
    assert fit(job, 2).words() == "dp 1, tp 2 (2 stages)"
    assert fit(job, 3).words() == "dp 3 (2 stages)"
    assert fit((), 4).words() == "dp 4"
    assert fit(job, 12).line(5, "pp") == (5, 11)
    assert fit(job, 12).line(5, "dp") == (1, 3, 5)


def traces(**different: tuple[str, ...]) -> dict:
    """Two stages on ranks 0 and 1 (and 2 and 3, the other replica), two rounds. "r2_1": rank 2, round 1."""
    sound = {0: ("rb", "c1", "r2", "c3"), 1: ("r1", "c2", "c4", "c5")}
    return {
        (rank, number, (rank % 2, 0)): different.get(f"r{rank}_{number}", sound[rank % 2])
        for rank in range(4)
        for number in range(2)
    }


def test_the_first_wrong_result_is_to_blame_and_whom_it_was_sent_is_not():
    spread = traces(r2_1=("rb", "cX", "rY", "cZ"), r3_1=("rX", "cY", "cQ", "cR"))
    compared = compare(spread)
    assert (compared.num_different, compared.num_compared, compared.culprits) == (2, 8, (2,))
    later = traces(r3_0=("r1", "c2", "cX", "c5"))
    assert compare(later).culprits == (3,)
    sound = compare(traces())
    assert (sound.num_different, sound.culprits) == (0, ())
    assert len({sound.digest, compared.digest, compare(later).digest}) == 3


def test_of_two_nobody_can_say_which_and_of_one_nothing():
    role = (0, 0)
    two = compare({(0, 0, role): ("ca",), (1, 0, role): ("cb",)})
    assert (two.num_different, two.culprits) == (1, ())
    one = compare({(0, 0, role): ("ca",)})
    assert (one.num_different, one.num_compared, one.culprits) == (0, 0, ())
    halves = compare({(rank, 0, role): ("ca" if rank < 2 else "cb",) for rank in range(4)})
    assert (halves.num_different, halves.culprits) == (2, ())


@given(st.integers(min_value=1, max_value=5), st.integers(min_value=1, max_value=4))
def test_the_digest_does_not_depend_on_how_many_replicas_and_rounds_agree(replicas, rounds):
    many = {(rank, number, (0, 0)): ("ra", "cb") for rank in range(replicas) for number in range(rounds)}
    assert compare(many).digest == compare({(0, 0, (0, 0)): ("ra", "cb")}).digest


ASKED = ExamineNode(
    why="test", node="n0", generation=0, exam="i1/1", kind=ExamKind.REPLAY, group=("n0", "n1"), group_index=0,
    num_ranks=2, store_host="127.0.0.1", store_port=1, limit_s=5.0,
)  # fmt: skip
PASSED = Said(passed=True, why="fine", digest="abc")
UNKNOWN = Said(passed=None, why="no store")


def examinee(said: Said | None, **ended: int) -> Examinee:
    made = Examinee(1)
    made.said = said
    made.ended = Ended(pid=1, at=0.0, **ended) if ended else None
    return made


@pytest.mark.parametrize(
    ("found", "failure", "passed", "why", "blames"),
    [
        ([examinee(PASSED), examinee(PASSED)], "", True, "fine", ()),
        ([examinee(PASSED), examinee(UNKNOWN)], "", None, "no store", ()),
        ([examinee(PASSED), examinee(None, signal=9)], "", None, "process 1 of the examination was killed by sig", ()),
        ([examinee(PASSED), examinee(None, code=1)], "", None, "process 1 of the examination ended with exit", ()),
        ([examinee(None), examinee(PASSED)], "not done within 5 s", None, "replay: not done within 5 s", ()),
        ([], "ended before it was done", None, "replay: ended before it was done", ()),
        ([examinee(Said(passed=False, why="n1 fell silent", blames=("n1",))), examinee(None)], "late", False,
         "n1 fell silent", ("n1",)),
        ([examinee(Said(passed=False, why="a", blames=("n1",))), examinee(Said(passed=False, why="b", blames=("n0",)))],
         "", False, "a", ("n0", "n1")),
    ],
)  # fmt: skip
def test_a_node_fails_when_one_process_saw_it_and_passes_when_all_did(found, failure, passed, why, blames):
    said = summed_up(ASKED, found, failure)
    assert (said.passed, said.blames) == (passed, blames)
    assert said.why.startswith(why)


def test_a_sick_machine_has_one_sick_device_and_each_process_its_own_chances():
    ailments = Ailments()
    assert ailments.of_process(0) == []
    ailments.add(Inject(why="test", drill="d1", kind="miscompute", options={"chance": 0.3, "seed": 7}))
    assert ailments.of_process(1) == []
    found = [ailments.of_process(0)[0]["options"] for _ in range(2)]
    assert found == [{"chance": 0.3, "seed": 7, "process": 1}, {"chance": 0.3, "seed": 7, "process": 2}]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({}, ""),
        ({"chance": 0.3, "seed": 4, "result": "nan"}, ""),
        ({"chance": 0}, "chance 0"),
        ({"chance": "often"}, "chance 'often'"),
        ({"seed": 0.5}, "seed 0.5"),
        ({"result": "text"}, "there are: bit, nan"),
        ({"percent": 3}, "no option percent"),
    ],
)
def test_options_of_a_machine_that_computes_wrongly(options, why):
    found = why_bad_options("miscompute", options)
    assert (found == "") if not why else (why in found)
