"""Numbers: log formats, NaN, jumps, digests."""

import pytest

from everstep.analyzer.numbers.digests import Digest, compare
from everstep.analyzer.numbers.series import Point, judge_numbers
from everstep.analyzer.observations.records import ParallelGroup
from everstep.analyzer.reading.log_lines import read_point, read_rank, read_step, read_timeout

MEGATRON = (
    " [2026-01-02 03:04:05] iteration      120/  500000 | consumed samples:       122880 | "
    "elapsed time per iteration (ms): 5123.0 | learning rate: 1.500000E-06 | global batch size:  1024 | "
    "lm loss: 1.0312E+01 | loss scale: 1.0 | "
    "grad norm: 12.345 | number of skipped iterations:   0 | number of nan iterations:   0 |"
)
TITAN = (
    "[rank0]:[titan] 2026-01-02 03:04:05,678 - root - INFO - \x1b[31mstep: 10  \x1b[32mloss:  8.1234  "
    "\x1b[38;2;180;60;0mgrad_norm:  1.2345  \x1b[33mmemory: 0.88GiB(1.1%)  \x1b[34mtps: 8,123  \x1b[36mtflops: 1.2"
)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (MEGATRON, Point(step=120, loss=10.312, grad_norm=12.345, step_s=5.123)),
        (TITAN, Point(step=10, loss=8.1234, grad_norm=1.2345)),
        ("{'loss': 2.34, 'grad_norm': 1.2, 'learning_rate': 4.9e-05, 'epoch': 0.01}", Point(loss=2.34, grad_norm=1.2)),
        ("{'loss': '2.34', 'grad_norm': '1.2', 'epoch': '0.01'}", Point(loss=2.34, grad_norm=1.2)),
        ('{"step": 7, "loss": 0.5}', Point(step=7, loss=0.5)),
        ("step 12 loss 3.25", Point(step=12, loss=3.25)),
        ("iter=5 loss=1e-3", Point(step=5, loss=0.001)),
        ("step 250: train loss 2.9, val loss 3.2", Point(step=250, loss=2.9)),
        ("Epoch 3, step: 70, Loss: 0.25, gnorm: 1.5", Point(step=70, loss=0.25, grad_norm=1.5)),
    ],
)
def test_lines_of_known_formats(line, expected):
    assert read_point(line) == expected


@pytest.mark.parametrize("value", ["nan", "NaN", "inf", "-inf"])
def test_not_a_number_is_read_as_such(value):
    point = read_point(f"step: 3  loss: {value}  grad_norm:  {value}")
    assert point is not None
    found = judge_numbers([point], 0.0)
    assert found is not None
    assert (found.code, found.ranks) == ("ES-N01", ())
    assert "step 3" in found.sentence


@pytest.mark.parametrize(
    "line",
    [
        "validation loss at iteration 1000 | lm loss value: 2.5E+00 | lm loss PPL: 12.1",
        "val loss: 3.2",
        "Validation Loss 3.2",
        "test_loss=7",
        "{'eval_loss': 3.2}",
        "val/loss: 4.0",
        "",
        "hello",
        "loss of connection",
        "the loss was",
        "x" * 100_000,
        "gradient 5",
        "step 5",
    ],
)
def test_lines_without_numbers(line):
    assert read_point(line) is None


def test_steps_ranks_and_timeouts():
    assert read_step("  5%|#   | 10/200 [00:01<00:19,  9.9it/s]") == 10
    assert read_rank("[rank3]: Traceback") == 3
    assert read_rank("[default7]: x") is None or read_rank("[default7]: x") == 7
    timeout = read_timeout(
        "[rank3]:[E102 03:04:05 ProcessGroupNCCL.cpp:632] [Rank 3] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=90412, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600027 ms"
    )
    assert timeout is not None
    assert (timeout.rank, timeout.seq, timeout.op) == (3, 90412, "allreduce")
    gloo = read_timeout(
        "RuntimeError: [../unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation to complete"
    )
    assert gloo is not None
    assert gloo.seq is None


def series(*losses, name="loss"):
    return [Point(step=i, **{name: value}) for i, value in enumerate(losses)]


def test_a_jump_is_measured_against_the_jobs_own_level():
    losses = [3.0 - 0.01 * i for i in range(40)]
    found = judge_numbers(series(*losses, 15.0), 0.0)
    assert found is not None
    assert (found.code, found.confidence) == ("ES-N02", "medium")
    assert judge_numbers(series(*losses, 12.0), 0.0) is None
    assert judge_numbers(series(*[100.0, 20.0, 5.0, 1.0], *losses), 0.0) is None


def test_one_gradient_spike_is_less_sure_than_two():
    norms = [1.0, 1.2, 0.9, 1.1] * 5
    one = judge_numbers(series(*norms, 9.0, 1.0, name="grad_norm"), 0.0)
    two = judge_numbers(series(*norms, 9.0, 9.5, name="grad_norm"), 0.0)
    assert one is not None
    assert two is not None
    assert (one.code, one.confidence, two.confidence) == ("ES-N03", "low", "medium")


def test_infinite_gradients_of_loss_scaling_are_usual():
    inf = float("inf")
    assert judge_numbers([Point(step=1, grad_norm=inf, loss=1.0)] * 2, 0.0) is None
    assert judge_numbers([Point(step=1, grad_norm=inf, loss=1.0, skipped=True)] * 9, 0.0) is None
    assert judge_numbers([Point(step=1, grad_norm=inf, loss=1.0)] * 3, 0.0) is not None


REPLICAS = ParallelGroup(name="1", desc="mesh_dp", kind="dp", ranks=(0, 2, 4, 6))


def digests(step=10, **odd):
    values = {rank: {"w": "aa", "b": "bb"} for rank in REPLICAS.ranks}
    for rank, value in odd.items():
        values[int(rank[1:])] = {"w": value, "b": "bb"}
    return [Digest(rank=rank, step=step, values=value) for rank, value in values.items()]


def test_the_replica_that_differs_is_named_with_the_parameter():
    found = compare(digests(r4="ac"), REPLICAS, 0.0)
    assert found is not None
    assert (found.code, found.ranks, found.group) == ("ES-N04", (4,), REPLICAS)
    assert "w" in found.evidence[0].says


def test_a_replica_in_which_every_parameter_differs_may_be_the_programs():
    """A flipped bit changes one of them. A line that one rank alone runs (a scaling, a reload) changes all."""
    group = ParallelGroup(name="0", ranks=(0, 1, 2), complete=True)
    usual = {"a": "1", "b": "2", "c": "3"}

    def found(odd: dict[str, str]):
        held = [Digest(rank=r, step=9, values=odd if r == 1 else usual) for r in group.ranks]
        finding = compare(held, group, 0.0)
        assert finding is not None
        return finding

    one, every = found(usual | {"b": "7"}), found({"a": "7", "b": "8", "c": "9"})
    assert (one.ranks, one.confidence, one.blame) == ((1,), "high", None)
    assert (every.ranks, every.confidence, every.blame) == ((1,), "medium", "unknown")
    assert "lines of the program that not every rank runs" in every.sentence
    other_names = found({"a": "7", "b": "8", "d": "9"})
    assert (other_names.confidence, other_names.blame) == ("medium", "unknown"), "no machine gives them other names"


def test_replicas_that_agree_are_no_finding():
    assert compare(digests(), REPLICAS, 0.0) is None
    assert compare([], REPLICAS, 0.0) is None
    assert compare(digests()[:1], REPLICAS, 0.0) is None


@pytest.mark.parametrize("given", [digests(r4="ac", r6="ac"), digests(r4="ac")[1:3], digests(r2="x", r4="y", r6="z")])
def test_without_a_majority_nobody_is_blamed(given):
    found = compare(given, REPLICAS, 0.0)
    assert found is not None
    assert found.code == "ES-N05"
    assert "is not known" in found.sentence


def test_only_digests_of_one_step_are_compared():
    late = [*digests(step=10)[1:], Digest(rank=0, step=20, values={"w": "zz"})]
    assert compare(late, REPLICAS, 0.0) is None
    assert compare([*digests(step=10, r2="x"), *digests(step=20)], REPLICAS, 0.0) is None
