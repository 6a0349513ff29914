"""The flow's table and its rounds, where a scenario would hide the point."""

import pytest

from everstep.core.decide.exam_rounds import job_shape, judge, next_round, replay_layout
from everstep.core.decide.flow import TABLE, WORDS
from everstep.core.state.course import Answer, Examination, ExamRound, FlowStage
from everstep.core.state.frozenmap import FrozenMap
from everstep.core.state.phases import Phase
from everstep.core.state.policy import Policy
from everstep.core.state.schema import State
from everstep.errors import ConfigError
from everstep.model import actions, events
from everstep.model.facts import ExamKind, RankGroup
from everstep.model.spec import RunSpec
from everstep.testing import Cluster

NODES = tuple(f"n{i}" for i in range(6))
GOOD = Answer(passed=True, why="", digest="same")


def replayed(*rounds: dict[str, Answer], nodes: tuple[str, ...] = NODES) -> Examination:
    """A replay of which the rounds have these answers, instead of the good one."""
    examination = Examination(stage=FlowStage.REPLAY, begun_at=0.0, nodes=nodes, store=("h", 1))
    for answers in rounds:
        coming = next_round(examination, 1)
        assert coming is not None
        kind, groups = coming
        said = FrozenMap((node, answers.get(node, GOOD)) for group in groups for node in group)
        done = ExamRound(exam=f"i1/{len(examination.rounds) + 1}", kind=kind, groups=groups, answers=said)
        examination = Examination(
            stage=FlowStage.REPLAY,
            begun_at=0.0,
            nodes=nodes,
            store=("h", 1),
            rounds=(*examination.rounds, done),
        )
    return examination


def self_tested(*whys: str) -> Examination:
    """Of as many nodes: what each failed; empty: it passed."""
    nodes = NODES[: len(whys)]
    answers = FrozenMap((n, Answer(passed=not why, why=why)) for n, why in zip(nodes, whys, strict=True))
    done = ExamRound(exam="i1/1", kind=ExamKind.SELF, groups=tuple((node,) for node in nodes), answers=answers)
    return Examination(stage=FlowStage.EXAMINE, begun_at=0.0, nodes=nodes, store=("h", 1), rounds=(done,))


def test_what_all_machines_fail_alike_is_no_machines_fault() -> None:
    judged = judge(self_tested("/data is 0.998 full", "/data is 0.997 full"))
    assert not judged.failed
    assert "all of them fail alike" in judged.unclear[0].why


@pytest.mark.parametrize(
    ("whys", "failed"),
    [
        (("/data is 0.998 full", ""), ["n0"]),
        (("/data is 0.998 full", "a copy in the memory of cpu is not equal"), ["n0", "n1"]),
        (("/data is 0.998 full",), ["n0"]),
    ],
)
def test_what_one_fails_or_each_in_its_own_way_is_its_own(whys, failed) -> None:
    assert sorted(judge(self_tested(*whys)).failed) == failed


def test_every_stage_has_words_and_each_column_is_in_order() -> None:
    order = list(FlowStage)
    assert set(WORDS) == set(FlowStage)
    for column in TABLE.values():
        assert list(column) == sorted(column, key=order.index)


def test_a_group_whose_digest_differs_failed_although_it_says_that_it_passed() -> None:
    odd = Answer(passed=True, why="", digest="other")
    examination = replayed({"n4": odd, "n5": odd}, {"n4": odd, "n1": odd}, {"n4": odd, "n0": odd})
    assert list(judge(examination).failed) == ["n4"]
    assert next_round(examination, 1) is None


def test_a_candidate_that_passes_among_good_machines_is_not_named() -> None:
    bad = Answer(passed=False, why="differs")
    examination = replayed({"n4": bad}, {"n4": bad}, {})
    judged = judge(examination)
    assert not judged.failed
    assert "nothing differed with them" in judged.unclear[0].why


def test_groups_that_do_not_answer_name_nobody() -> None:
    silent = Answer(passed=None, why="no answer")
    examination = replayed(dict.fromkeys(NODES, silent), dict.fromkeys(NODES, silent))
    assert next_round(examination, 1) is None
    assert not judge(examination).failed
    assert judge(examination).unclear


def test_one_candidate_without_partners_is_named_and_the_doubt_is_said() -> None:
    """m = n = 3: both groups of n4 leave 4 machines, and 2 are needed; with a third group unknown there are too few."""
    nodes = tuple(f"n{i}" for i in range(9))
    bad, silent = Answer(passed=False, why="differs"), Answer(passed=None, why="no answer")
    first = {"n4": bad, **dict.fromkeys(["n6", "n7", "n8"], silent)}
    second = {"n4": bad, **dict.fromkeys(["n2", "n5", "n8"], silent)}
    judged = judge(replayed(first, second, nodes=nodes))
    assert list(judged.failed) == ["n4"]
    assert "not confirmed" in judged.failed["n4"]
    assert any(refusal.what == "confirm n4" for refusal in judged.unclear)


def test_the_layout_of_the_job_comes_from_the_groups_that_its_ranks_declared() -> None:
    state = State(spec=RunSpec(program="t", num_slots=8, nproc_per_node=2))
    assert job_shape(state) == (("pp", 1), ("dp", 16), ("tp", 1))
    groups = (RankGroup(title="mesh_tp", ranks=(0, 1)), RankGroup(title="PIPELINE_MODEL_PARALLEL", ranks=(0, 4, 8, 12)))
    declared = State(spec=state.spec, groups=groups)
    assert job_shape(declared) == (("pp", 4), ("dp", 2), ("tp", 2))
    assert replay_layout(declared, NODES) == "6 machines are not whole pipelines of 4"


def test_no_answer_at_all_ends_every_examination_at_its_limit() -> None:
    cluster = Cluster(RunSpec(program="t", num_slots=4), Policy(blind_restarts=0, exam_limit_s=5.0))
    cluster.start()
    cluster.train(2)
    cluster.held_back.add("ExamineNode")
    cluster.end(1, signal=11)
    assert cluster.state.phase is Phase.EXAMINING
    exams = {a.exam for a in cluster.wait(60) if isinstance(a, actions.ExamineNode)}
    assert len(exams) == 3, "after the first: two rounds of pairs and the alignment"
    assert cluster.state.phase is not Phase.EXAMINING
    assert not [a for r in cluster.records for a in r.actions if isinstance(a, actions.EvictNode)]


def test_an_answer_to_another_examination_is_ignored() -> None:
    cluster = Cluster(RunSpec(program="t", num_slots=3), Policy(blind_restarts=0))
    cluster.start()
    cluster.train(2)
    cluster.held_back.add("ExamineNode")
    cluster.end(1, signal=11)
    before = cluster.state
    late = events.NodeExamined(at=0.0, node="n0", generation=0, exam="i0/1", passed=False, why="it is bad")
    assert cluster.feed(late) == []
    assert cluster.state == before


@pytest.mark.parametrize("signal", [9, 15, 2])
def test_a_rank_that_somebody_killed_is_never_examined(signal: int) -> None:
    """Nothing in the machine can be behind it: it recovers in the time of a restart, however often."""
    cluster = Cluster(RunSpec(program="t", num_slots=3, num_standby=1), Policy(blind_restarts=0))
    cluster.start()
    for _ in range(5):
        cluster.train(1)
        decided = cluster.end(1, signal=signal)
        assert not [a for a in decided if isinstance(a, actions.ExamineNode | actions.EvictNode)]
        assert [a for a in decided if isinstance(a, actions.StartWorkers)], "in the same turn"


def test_what_somebody_raised_is_never_examined() -> None:
    cluster = Cluster(RunSpec(program="t", num_slots=3), Policy(blind_restarts=0))
    cluster.start()
    cluster.train(1)
    assert not [a for a in cluster.raise_in(1) if isinstance(a, actions.ExamineNode)]


def test_all_gather_needs_no_group_larger_than_two() -> None:
    examination = Examination(stage=FlowStage.EXAMINE, begun_at=0.0, nodes=NODES[:5], store=("h", 1))
    kinds = []
    while (coming := next_round(examination, 2)) is not None:
        kind, groups = coming
        kinds.append(kind)
        assert all(len(group) == (2 if kind is ExamKind.ALL_GATHER else 1) for group in groups)
        said = FrozenMap((node, GOOD) for group in groups for node in group)
        done = ExamRound(exam="x", kind=kind, groups=groups, answers=said)
        examination = Examination(
            stage=FlowStage.EXAMINE,
            begun_at=0.0,
            nodes=NODES[:5],
            store=("h", 1),
            rounds=(*examination.rounds, done),
        )
    assert [str(kind) for kind in kinds] == [
        "self",
        "all-to-all",
        "all-gather",
        "all-gather",
        "all-gather",
        "alignment",
    ]


@pytest.mark.parametrize("wrong", [{"replay_detection": 0.0}, {"replay_detection": 1.5}, {"replay_confidence": 1.0}])
def test_shares_that_are_no_probabilities(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="probabilities"):
        Policy(**wrong)
