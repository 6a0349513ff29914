"""What is shown while something takes long."""

import io

from everstep.cli.waiting import BYTES, Waiting, waiting


def shown(total, unit, steps, every_s=0.1):
    now, lines = [0.0], []
    bar = Waiting("reading", total, unit, lines.append, every_s=every_s, clock=lambda: now[0])
    for seconds, number in steps:
        now[0] += seconds
        bar.step(number)
    return lines


def test_nothing_within_two_seconds():
    assert shown(100, "run", [(0.5, 10)] * 3) == []


def test_rate_and_rest():
    assert shown(100, "run", [(2.5, 50)]) == ["reading 50 of 100 runs  50%  20 runs/s  2.50s left"]
    assert shown(4096, BYTES, [(4.0, 1024)]) == ["reading 1.00 KiB of 4.00 KiB  25%  256 B/s  12.0s left"]


def test_an_end_that_nobody_knows():
    assert shown(0, "step", [(4.0, 8)]) == ["reading 8  2 steps/s  for 4.00s"]


def test_plain_lines_now_and_then_elsewhere():
    assert len(shown(100, "run", [(1.0, 1)] * 25, every_s=10.0)) == 3
    stream = io.StringIO()
    with waiting("reading", 3, "run", stream) as bar:
        bar.step()
    assert stream.getvalue() == ""


def test_items_count_when_they_have_been_dealt_with():
    bar = Waiting("reading", 3, "run", lambda _: None, every_s=1.0)
    assert [(each, bar.done) for each in bar.over("abc")] == [("a", 0), ("b", 1), ("c", 2)]
    assert bar.done == 3
