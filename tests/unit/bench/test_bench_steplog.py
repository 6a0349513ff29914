"""bench/measuring/steplog.py: torn lines, growing files, and which ranks make one whole attempt."""

import sys
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[3] / "bench"))
from measuring.steplog import StepDone, StepLogs, first_step_of_slowest, latest_by_rank, parse_line, steps_of_attempt


def done(restart: int, rank: int, at: float, pid: int, step: int = 0) -> StepDone:
    return StepDone(restart=restart, rank=rank, step=step, at=at, pid=pid)


@given(st.text())
def test_any_text_is_a_step_or_nothing(text: str):
    assert parse_line(text) is None or isinstance(parse_line(text), StepDone)


def test_a_whole_line_is_read_and_its_stump_is_not():
    line = "1 3 17 1748.989099 7870"
    parsed = parse_line(line)
    assert parsed is not None
    assert (parsed.restart, parsed.rank, parsed.step, parsed.at, parsed.pid) == (1, 3, 17, 1748.989099, 7870)
    assert parse_line("1 3 17") is None
    timed = parse_line("1 3 17 1748.989099 7870 12.5 0.25")
    assert timed is not None
    assert (timed.cpu_s, timed.loop_s) == (12.5, 0.25)
    assert parse_line("1 x 17 1748.9 7870") is None


def test_a_file_cut_anywhere_gives_each_line_once(tmp_path: Path):
    data = b"".join(b"0 0 %d %d.5 42\n" % (step, step) for step in range(12))
    path = tmp_path / "rank-0.log"
    for cut in range(len(data)):
        logs = StepLogs(tmp_path)
        path.write_bytes(data[:cut])
        logs.read()
        path.write_bytes(data)
        logs.read()
        assert [step.step for step in logs.done] == list(range(12))


def test_the_slowest_rank_of_the_new_attempt_counts():
    steps = [
        done(0, 0, 9.0, 1),
        done(0, 1, 9.0, 2),
        done(1, 0, 11.0, 3),
        done(1, 1, 12.0, 4),
        done(1, 0, 13.0, 3),
    ]
    assert first_step_of_slowest(steps, after=10.0, old_pids={1, 2}, num_ranks=2) == 12.0


def test_survivors_of_the_old_attempt_do_not_count_as_recovered():
    steps = [done(0, 0, 10.5, 1), done(0, 1, 10.6, 2)]
    assert first_step_of_slowest(steps, after=10.0, old_pids={1, 2}, num_ranks=2) is None


def test_ranks_of_two_attempts_never_make_one_whole():
    steps = [done(1, 0, 11.0, 3), done(2, 1, 12.0, 6)]
    assert first_step_of_slowest(steps, after=10.0, old_pids={1, 2}, num_ranks=2) is None
    steps.append(done(2, 0, 14.0, 5))
    assert first_step_of_slowest(steps, after=10.0, old_pids={1, 2}, num_ranks=2) == 14.0


def test_latest_step_names_the_living_process_of_each_rank():
    steps = [done(0, 0, 1.0, 1), done(1, 0, 3.0, 7), done(0, 1, 2.0, 2)]
    assert {rank: step.pid for rank, step in latest_by_rank(steps).items()} == {0: 7, 1: 2}
    assert steps_of_attempt(steps, {7, 2}) == {0: 1, 1: 1}
