"""What output that is made to be slow costs the matcher: an agent reads a rank's last words in its event loop."""

import time

import pytest
from built_in import BASE, ENGINE

from everstep.knowledge.matcher import Matcher


@pytest.mark.parametrize(
    "text",
    [
        b"Root Cause (first observed failure):\n" + b" " * 40_000 + b":\n",
        b"".join(b"- **CUDA out of memory** : x%d\n" % number for number in range(8_000)),
    ],
    ids=["a line of spaces in an agent's report", "a list of thousands"],
)
def test_output_that_is_made_to_be_slow_costs_no_time(text: bytes):
    matcher = Matcher(BASE, now=1_795_000_000.0, engine=ENGINE)
    began = time.process_time()
    matcher.feed("log", text)
    matcher.finish()
    assert time.process_time() - began < 2.0
