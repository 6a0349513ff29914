"""What stands after a program's own word that its training is over: its teardown, and what is not."""

import pytest
from built_in import BASE, ENGINE

from everstep.knowledge.causality.finished import says_so
from everstep.knowledge.causality.ranking import Choice, choose_verdict, rank_findings
from everstep.knowledge.live import classify
from everstep.knowledge.matcher import Matcher

STEPS = "".join(f"step {n} loss 2.{n}\n" for n in range(20))
WORDS = (
    "Training complete",
    "2026-03-01 10:00:00 INFO Training completed. Do not forget to share your model on huggingface.co/models =)",
    "{'train_runtime': 812.4, 'train_samples_per_second': 8.1, 'train_loss': 1.2, 'epoch': 3.0}",
    "`Trainer.fit` stopped: `max_epochs=3` reached.",
    "[after training is done] datetime: 2026-03-01 10:00:00",
    "2026-03-01 10:00:00 | INFO | fairseq_cli.train | done training in 812.4 seconds",
    '0: :::MLLOG {"key": "run_stop", "value": null, "metadata": {"lineno": 315, "status": "success"}}',
    "[rank0]:[titan] 2026-03-01 10:00:00,123 - root - INFO - Training completed",
    "exiting program at iteration 1000",
)
BEGINS = (
    "Starting training of fold 2\n",
    (
        "W1121 10:00:01.120 811 torch/distributed/run.py:793] Setting OMP_NUM_THREADS environment variable for each "
        "process to be 1 in default\n"
    ),
    "n0:81:90 [0] NCCL INFO NCCL version 2.27.5+cuda12.9\n",
)
"""Of training in the same program, or of another run that writes into the same file."""
NOT_YET = (
    "the model is saved when training is complete",
    "Waiting for training to be finished; training is not complete",
    "epoch 3: training done",
    "Training complete for epoch 3",
    "50% of training complete",
    "training finished with errors",
    "training finished: False",
    "Completed training step 3",
    'print0("Training complete")',
    '    logger.info("Training complete")',
)
TEARDOWNS = (
    "slurmstepd: error: *** STEP 88.0 ON n7 CANCELLED AT 2026-03-01T10:00:00 DUE TO TIME LIMIT ***\n",
    "slurmstepd: error: *** JOB 88 ON n7 CANCELLED AT 2026-03-01T10:00:00 ***\n",
    "srun: Job step aborted: Waiting up to 32 seconds for job step to finish.\n",
    "/job/run.sh: line 3: 812 Terminated              python train.py\n",
    (
        "terminate called after throwing an instance of 'c10::DistBackendError'\n"
        "  what():  NCCL error in: NCCLUtils.cpp:77, invalid usage (run with NCCL_DEBUG=WARN for details)\n"
    ),
    "n7:81:90 [0] NCCL WARN NET/IB : Got completion from peer n1<41822> with status=12 opcode=0 len=0 vendor err 129\n",
    "/job/run.sh: line 3: 812 Aborted                 (core dumped) python train.py\n",
    "Fatal Python error: Segmentation fault\n",
    "torch.distributed.elastic.multiprocessing.api.SignalException: Process 7 got signal: 15\n",
)
FAILURES = (
    'Traceback (most recent call last):\n  File "/job/train.py", line 7, in main\n    x["a"]\nKeyError: \'a\'\n',
    (
        'Traceback (most recent call last):\n  File "/job/train.py", line 9, in save\n    save()\n'
        "OSError: [Errno 28] No space left on device\n"
    ),
    "slurmstepd: error: Detected 1 oom_kill event in StepId=88.0. Some of the step tasks have been OOM Killed.\n",
    "kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=812, GPU has fallen off the bus.\n",
    "slurmstepd: error: *** JOB 88 ON n7 CANCELLED AT 2026-03-01T10:00:00 DUE TO NODE FAILURE ***\n",
)


def chosen(*pieces: str) -> Choice:
    matcher = Matcher(BASE, now=1_795_000_000.0, engine=ENGINE)
    for piece in pieces:
        matcher.feed("-", piece.encode())
    return choose_verdict(rank_findings(matcher.finish()))


@pytest.mark.parametrize("word", WORDS)
def test_last_words(word: str):
    assert chosen(STEPS + word + "\n" + TEARDOWNS[0]).finding is None


@pytest.mark.parametrize("word", NOT_YET)
def test_words_of_what_is_not_over(word: str):
    found = chosen(STEPS + word + "\n" + TEARDOWNS[0]).finding
    assert found is not None
    assert found.code == "ES-SC03"


@pytest.mark.parametrize("teardown", TEARDOWNS)
def test_what_tears_a_finished_program_down_ended_no_training(teardown: str):
    alone = chosen(STEPS + teardown)
    after = chosen(STEPS + WORDS[0] + "\n" + teardown)
    in_pieces = chosen(STEPS, WORDS[0] + "\n", "bye\n", teardown)
    assert alone.finding is not None
    assert (after.finding, in_pieces.finding) == (None, None)
    assert after.why.startswith("the training was over (line 21); then ES-")


@pytest.mark.parametrize("failure", FAILURES)
def test_what_fails_in_the_program_or_the_machine_after_that_stays_a_cause(failure: str):
    alone, after = chosen(STEPS + failure).finding, chosen(STEPS + WORDS[0] + "\n" + failure).finding
    assert (after and after.code) == (alone and alone.code)


@pytest.mark.parametrize("teardown", TEARDOWNS)
@pytest.mark.parametrize("failure", FAILURES)
def test_a_failure_before_the_word_stays_what_it_was(failure: str, teardown: str):
    """Scripts of a shell say that the training is over whatever came of it."""
    alone, both = chosen(STEPS + failure).finding, chosen(STEPS + failure + WORDS[0] + "\n" + teardown).finding
    assert (both and both.code) == (alone and alone.code)


@pytest.mark.parametrize("teardown", TEARDOWNS)
@pytest.mark.parametrize("again", [STEPS, *BEGINS])
def test_a_program_that_trains_again_has_not_finished(teardown: str, again: str):
    pieces = (STEPS, WORDS[0] + "\n", again, teardown)
    alone = chosen(STEPS + teardown).finding
    assert alone is not None
    for found in (chosen("".join(pieces)).finding, chosen(*pieces).finding):
        assert found is not None
        assert found.code == alone.code


def test_a_line_seen_before_and_after_the_word_came_before():
    line = TEARDOWNS[5]
    assert chosen(STEPS + line + WORDS[0] + "\n" + line).finding is not None


def test_one_word_of_one_log_says_nothing_of_another():
    matcher = Matcher(BASE, now=1_795_000_000.0, engine=ENGINE)
    matcher.feed("a", (STEPS + WORDS[0] + "\n").encode())
    matcher.feed("b", (STEPS + TEARDOWNS[0]).encode())
    assert choose_verdict(rank_findings(matcher.finish())).finding is not None


def test_a_rank_that_failed_is_explained_also_after_its_last_word():
    """Asked why a process failed, its teardown is the answer."""
    found = classify(STEPS + WORDS[0] + "\n" + TEARDOWNS[4])
    assert found is not None
    assert found.code == "ES-TD07"


def test_the_words_of_a_listing_are_none():
    assert says_so(b"Training complete")
    assert not says_so(b"info('Training complete')")


def test_steps_far_behind_the_word_are_seen_too():
    quiet = "".join(f"reading shard {n} of the corpus\n" for n in range(80_000))  # more than two blocks
    later = chosen(STEPS + WORDS[0] + "\n" + quiet + STEPS + TEARDOWNS[0]).finding
    assert later is not None
    assert later.code == "ES-SC03"
    assert chosen(STEPS + WORDS[0] + "\n" + quiet + TEARDOWNS[0]).finding is None
