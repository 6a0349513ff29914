"""The number of a line comes from counting line ends, in the way that is fastest for the text at hand."""

import pytest

from everstep.knowledge.lines import num_ends


@pytest.mark.parametrize("line", [b"", b"x", b"x" * 200], ids=["only-ends", "short", "long"])
def test_line_ends_are_counted_alike_whatever_their_distance(line):
    for size in (0, 1, 100, 9000):
        data = b"\n".join([line] * size)
        assert num_ends(data) == data.count(b"\n")
        assert num_ends(data, 50) == data.count(b"\n", 50)


def test_text_that_changes_from_long_lines_to_short_ones_is_counted_right():
    data = b"x" * 8000 + b"\n" * 5000
    assert num_ends(data) == 5000
    assert num_ends(data[::-1]) == 5000
