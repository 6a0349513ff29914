"""bench/public_examples.py's pure parts: what is masked, what counts as a difference, and what is torchrun's own."""

import io
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[3] / "bench"))
from sameness.example_compare import after_a_kill, called, last_try, meaning, not_of, plain, words
from sameness.example_list import EXAMPLES
from sameness.same_compare import Outcome, differences

FIRST = b"building\nrendezvous\nstep 1\nstep 2\ndone\n"
TAKEN = Outcome(
    exit_code=0,
    streams={"rank 0 try 0 stdout": FIRST, "rank 1 try 0 stdout": FIRST},
    files={"out.txt": b"text"},
    draws={},
)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (b"took 12.5s at 3.10it/s\n", b"took 9s at 11it/s\n"),
        (b"2026-11-26 00:44:35,123 INFO x\n", b"2026-11-26 01:02:03 INFO x\n"),
        (b"11/26/2026 00:44:35 - INFO\n", b"11/27/2026 10:44:35 - INFO\n"),
        (b"{'train_runtime': '12.5', 'loss': 2.0}\n", b"{'train_runtime': '8', 'loss': 2.0}\n"),
        (b"train_samples_per_second =    9.5\n", b"train_samples_per_second =  101.25\n"),
        (b"'eval_steps_per_second': 4.2}\n", b"'eval_steps_per_second': 171}\n"),
        (b"iter_dt 12.5ms; iter 10\n", b"iter_dt 4ms; iter 10\n"),
        (b"lr 20.00 | ms/batch 62.78 | loss 3.2\n", b"lr 20.00 | ms/batch 158.4 | loss 3.2\n"),
        (b"tcp://localhost:4001\n", b"tcp://localhost:65001\n"),
        (b"worker pid=17 said\n", b"worker pid=40123 said\n"),
        (b" 10%|#  | 1/9 [00:01<00:09]\r100%|###| 9/9 [00:09<00:00]\nend\n", b"100%|###| 9/9 [00:01<00:00]\nend\n"),
    ],
)
def test_what_two_runs_of_one_launcher_do_not_share_is_masked(one, other):
    assert words(one) == words(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (b"loss 2.0\n", b"loss 2.1\n"),
        (b"epoch 1: {'accuracy': 0.5}\n", b"epoch 1: {'accuracy': 0.6}\n"),
        (b"a warning\n", b""),
        (b" 10%|# | 1/9 [00:01<00:09]\na warning\n", b" 10%|# | 1/9 [00:01<00:09]\n"),
        (b"step 10\n", b"step 11\n"),
    ],
)
def test_what_a_program_means_is_not_masked(one, other):
    assert words(one) != words(other)


def test_without_a_seed_numbers_are_masked_and_words_are_not():
    assert words(b"loss 2.0 in layer\n", draws=True) == words(b"loss -3.1e-5 in layer\n", draws=True)
    assert words(b"|  2.0  |\n", draws=True) == words(b"| -11.25 |\n", draws=True)
    assert words(b"loss 2.0 in layer\n", draws=True) != words(b"loss 2.0 in other\n", draws=True)


def saved(value):
    into = io.BytesIO()
    torch.save(value, into)
    return into.getvalue()


def test_weights_are_compared_as_tensors_to_the_bit():
    made = {"layer": torch.ones(3), "steps": 4}
    other = {"layer": torch.ones(3).nextafter(torch.tensor(2.0)), "steps": 4}
    assert meaning("a.pt", saved(made)) == meaning("b.pt", saved(dict(made)))
    assert meaning("a.pt", saved(made)) != meaning("a.pt", saved(other))
    assert meaning("a.pt", saved(made), draws=True) == meaning("a.pt", saved(other), draws=True)
    assert meaning("a.pt", saved(made)) != meaning("a.pt", saved({**made, "steps": 5}))
    assert meaning("a.pt", b"no archive") == b"no archive"


def test_safetensors_are_compared_whatever_order_they_are_read_in():
    import safetensors.torch

    many = {f"layer {number}": torch.full((2,), float(number)) for number in range(20)}
    data = safetensors.torch.save(many)
    other = safetensors.torch.save({**many, "layer 3": many["layer 4"].clone()})
    assert len({meaning("a.safetensors", data) for _ in range(8)}) == 1
    assert meaning("a.safetensors", data) != meaning("a.safetensors", other)


def test_names_lose_their_times_and_hosts_and_stay_apart():
    assert (
        called("runs/Nov26_00-44-35_host/events.out.tfevents.1764115475.host.17.0") == "runs/<time>/events.out.tfevents"
    )
    taken = replace(TAKEN, files={"events.out.tfevents.1.h.1.0": b"", "events.out.tfevents.2.h.1.1": b""})
    assert sorted(plain(taken).files) == ["events.out.tfevents", "events.out.tfevents (2)"]


def test_a_killed_rank_may_leave_out_what_it_said_before_the_rendezvous_and_nothing_else():
    def killed(text):
        streams = {**TAKEN.streams, "rank 0 try 1 stdout": text, "rank 1 try 1 stdout": text}
        return replace(TAKEN, streams=streams)

    assert last_try(killed(b"x\n"))["rank 1 try 0 stdout"] == b"x\n"
    assert after_a_kill(TAKEN, killed(FIRST)) == []
    assert after_a_kill(TAKEN, killed(b"step 1\nstep 2\ndone\n")) == []
    assert after_a_kill(TAKEN, killed(b"step 2\nstep 1\ndone\n")) != []
    assert after_a_kill(TAKEN, killed(b"step 1\nstep 2\n")) != []
    assert after_a_kill(TAKEN, killed(b"")) != []
    assert after_a_kill(TAKEN, replace(killed(FIRST), files={"out.txt": b"other"})) != []
    assert after_a_kill(TAKEN, replace(killed(FIRST), exit_code=1)) != []
    assert after_a_kill(TAKEN, replace(TAKEN, streams={})) != []


def test_what_torchrun_does_not_do_twice_alike_is_its_own():
    other = replace(TAKEN, exit_code=1, files={"out.txt": b"other"})
    found = differences(TAKEN, other)
    assert [each.split(":")[0] for each in not_of(found, ["file out.txt: line 1: 'text', here 'x'"])] == ["exit code"]
    assert not_of(found, []) == found


def test_there_are_at_least_ten_examples_of_four_projects_each_named_once():
    assert len({each.name for each in EXAMPLES}) == len(EXAMPLES) >= 10
    assert len({each.project for each in EXAMPLES}) >= 4
