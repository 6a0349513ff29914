"""Jobs that somebody ended: the operator's where nothing failed before, else what failed."""

import pytest
from built_in import BASE, ENGINE

from everstep.knowledge.causality.ranking import Choice, choose_verdict, rank_findings
from everstep.knowledge.matcher import Matcher

STEPS = "".join(f"step {n} loss 2.{n}\n" for n in range(20))
INTERRUPT = (
    'Traceback (most recent call last):\n  File "/job/train.py", line 50, in main\n    step()\nKeyboardInterrupt\n'
)
FAILURES = (
    'Traceback (most recent call last):\n  File "/job/train.py", line 7, in main\n    x["a"]\nKeyError: \'a\'\n',
    'Traceback (most recent call last):\n  File "/job/t.py", line 7, in main\n    f()\nmine.OddError: no shard\n',
    "[E301 10:00:00 ProcessGroupNCCL.cpp:629] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL()\n",
    "OSError: [Errno 28] No space left on device\n",
    "Fatal Python error: Segmentation fault\n",
    "srun: error: node-7: task 3: Exited with exit code 1\n",
    "srun: error: node-7: tasks 0-3: Aborted (core dumped)\n",
)
HANDS = (
    INTERRUPT,
    "^C" + INTERRUPT,
    "slurmstepd: error: *** JOB 88123 ON node-7 CANCELLED AT 2026-03-01T10:00:00 ***\n",
    "srun: Job step aborted: Waiting up to 32 seconds for job step to finish.\n",
    "slurmstepd: error: *** STEP 88123.0 ON node-7 CANCELLED AT 2026-03-01T10:00:00 ***\n",
    "W0301 10:00:00.1 7 torch/distributed/elastic/agent/server/api.py:719] Received 2 death signal, shutting down\n",
    "torch.distributed.elastic.multiprocessing.api.SignalException: Process 7 got signal: 15\n",
    "/job/run.sh: line 3: 812 Terminated              python train.py\n",
    "job deleted at request of alice@login1\n",
    "TERM_OWNER: job killed by owner.\n",
    "Detected KeyboardInterrupt, attempting graceful shutdown ...\n",
    "2026-03-01 10:00:00 INFO Received SIGTERM, saving checkpoint and exiting\n",
    "mpirun: Forwarding signal 15 to job\n",
)


def chosen(text: str) -> Choice:
    matcher = Matcher(BASE, now=1_795_000_000.0, engine=ENGINE)
    matcher.feed("-", text.encode())
    return choose_verdict(rank_findings(matcher.finish()))


@pytest.mark.parametrize("hand", HANDS)
def test_an_end_by_hand_is_the_operators(hand: str):
    found = chosen(STEPS + hand).finding
    assert found is not None
    assert (found.blame, found.acts) == ("operator", False)


@pytest.mark.parametrize("hand", HANDS)
@pytest.mark.parametrize("failure", FAILURES)
def test_what_had_failed_before_it_stays_what_it_was(failure: str, hand: str):
    alone, both = chosen(STEPS + failure).finding, chosen(STEPS + failure + hand).finding
    assert (both and both.code) == (alone and alone.code)


@pytest.mark.parametrize("hand", HANDS[2:])
def test_training_that_goes_on_after_it_was_not_ended(hand: str):
    assert chosen(hand + STEPS).finding is None


def test_the_scheduler_says_why_it_cancelled():
    line = "slurmstepd: error: *** JOB 88123 ON node-7 CANCELLED AT 2026-03-01T10:00:00 DUE TO TIME LIMIT ***\n"
    found = chosen(STEPS + line + "2026-03-01 10:00:00 INFO Received SIGTERM, saving checkpoint and exiting\n").finding
    assert found is not None
    assert found.code == "ES-SC03"
