"""Patterns are tried from where a word of theirs stands in a line; they find what they would find from its begin."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.analyzer.reading import log_lines
from everstep.analyzer.reading.lines import Lines
from everstep.analyzer.reading.log_lines import read_rank

PARTS = (
    *("step", "global_step", "iter", "iteration", " 12/ 300 |", "loss", "train_loss", "val_loss", "lm loss", "LOSS"),
    *("grad_norm", "grad norm", "gnorm", "elapsed time per iteration (ms): 31.5", "number of skipped iterations: 2"),
    *(" ", ":", "=", "'", '"', "1.5", "7", "nan", "inf", "3,000", "| 3/70 [", "|", "-", "_", "eval ", "İ", "é", "\t"),
    *("rank", "[rank3]:", "[Rank 4]", "Rank 5", "local_rank=1", "[default2]:"),
)
CASES = [
    (log_lines._LOSS, log_lines._OF_LOSS, 7),
    (log_lines._GRAD, log_lines._OF_GRAD, 1),
    (log_lines._STEP, log_lines._OF_STEP, 7),
    (log_lines._MEGATRON, log_lines._OF_MEGATRON, 0),
    (log_lines._ELAPSED, log_lines._OF_ELAPSED, 0),
    (log_lines._SKIPPED, log_lines._OF_SKIPPED, 0),
    (log_lines._BAR, log_lines._OF_BAR, 0),
    (log_lines._RANK_WITHIN, log_lines._OF_RANK, 1),
]
lines = st.lists(st.sampled_from(PARTS), max_size=14).map("".join)


@pytest.mark.parametrize(("pattern", "words", "back"), CASES)
@given(line=lines)
def test_the_first_match_is_found(pattern: "re.Pattern[str]", words: tuple[str, ...], back: int, line: str) -> None:
    found, all_tried = log_lines._search(pattern, line, line.lower(), words, back), pattern.search(line)
    assert (found and found.span()) == (all_tried and all_tried.span())


@given(st.lists(lines, max_size=6))
def test_what_is_asked_of_all_lines_at_once_is_what_each_of_them_says(texts: list[str]) -> None:
    log = Lines(texts)
    assert list(log.lowered) == [text.lower() for text in texts]
    assert list(log.ranks) == [read_rank(text) for text in texts]
    for word in ("rank", "loss", "nan", "absent"):
        assert log.numbers_with(word) == [number for number, text in enumerate(texts) if word in text]
        assert log.has(word) == bool(log.numbers_with(word))
        assert log.numbers_of(word) == [number for number, text in enumerate(texts) if word in text.lower()]
        assert log.says(word) == bool(log.numbers_of(word))
