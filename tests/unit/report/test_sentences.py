"""Records as sentences that people read."""

import pytest

from everstep.model.events import RuntimeFaulted
from everstep.report.parts.sentences import event_sentence

UNSEALED = "resumes after step 31 with a snapshot that was not sealed yet"


@pytest.mark.parametrize(
    ("where", "why", "sentence"),
    [
        ("state: unsealed", UNSEALED, f"rank 2: {UNSEALED}"),
        ("digest", "KeyError: 3", "rank 2: everstep's own digest failed and was left out: KeyError: 3"),
    ],
)
def test_what_state_tells_of_itself_is_no_failure_of_ours(where, why, sentence):
    assert event_sentence(RuntimeFaulted(at=1.0, node="n0", rank=2, generation=1, where=where, why=why)) == sentence
