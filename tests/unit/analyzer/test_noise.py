"""What healthy jobs print and what sounds like a fault: no verdict has a cause."""

import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[3] / "bench"
sys.path.insert(0, str(BENCH))

from excerpts import NOTHING_FOUND, verdict_on  # noqa: E402
from healthy_noise import CAUGHT, blocks, healthy  # noqa: E402

STEPS = "".join(f"step: {step} loss: {3.4 - step / 100:.2f}\n" for step in range(1, 6))
NOISE = blocks()


@pytest.mark.parametrize("block", NOISE, ids=[block[:40] for block in NOISE])
def test_a_block_of_noise_before_a_few_steps_has_no_cause(block):
    verdict = verdict_on(f"{block.removeprefix(CAUGHT)}\n{STEPS}").verdict
    assert verdict.code in NOTHING_FOUND, verdict.sentence


@pytest.mark.parametrize("number", range(0, 300, 5))
def test_a_healthy_log_full_of_noise_has_no_cause(number):
    verdict = verdict_on(healthy(number, NOISE)).verdict
    assert verdict.code in NOTHING_FOUND, verdict.sentence
