"""bench/same_programs.py's pure parts: a seed is a program, and what counts as a difference."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "bench"))
from sameness.same_compare import Outcome, calm, differences, outcome
from sameness.same_fragments import FRAGMENTS
from sameness.same_generator import program

SEEDS = range(300)
SAME = Outcome(
    exit_code=0,
    streams={"rank 0 try 0 stdout": b"one\ntwo\n", "rank 1 try 0 stdout": b"one\ntwo\n"},
    files={"out.txt": b"text"},
    draws={"uuid": ("'a'", "'b'"), "seeded": ("1", "1")},
)


def test_a_seed_is_a_program_to_the_last_byte_and_every_program_compiles():
    for seed in SEEDS:
        made = program(seed)
        assert made == program(seed)
        for name, text in made.files.items():
            if name.endswith(".py"):
                compile(text, f"{seed}-{name}", "exec")


def test_three_hundred_programs_have_every_piece_many_times():
    pieces = [piece for seed in SEEDS for piece in program(seed).pieces]
    kinds = {make.__name__.replace("_", "-").split("-")[0] for make in FRAGMENTS}
    assert len(FRAGMENTS) >= 40
    assert len(kinds) >= 30
    assert len(set(pieces)) >= 60
    assert {program(seed).nproc for seed in SEEDS} == {1, 2, 3}
    assert {program(seed).logged for seed in SEEDS} == {True, False}


def test_whatever_ends_a_process_is_the_last_thing_that_it_does():
    for seed in SEEDS:
        pieces = program(seed).pieces
        assert not any(name.startswith("ends-") for name in pieces[:-1])


def test_two_equal_outcomes_differ_in_nothing_and_other_draws_are_the_same_when_as_distinct():
    other = replace(SAME, draws={"uuid": ("'c'", "'d'"), "seeded": ("7", "7")})
    assert differences(SAME, SAME) == differences(SAME, other) == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"exit_code": 10}, "exit code: 0, here 10"),
        ({"exit_code": None}, "exit code: 0, here none (did not end)"),
        ({"draws": {"uuid": ("'c'", "'c'"), "seeded": ("1", "1")}}, "draw uuid: 2 distinct of 2, here 1 distinct of 2"),
        ({"draws": {"uuid": ("'c'", "'d'")}}, "draw seeded: 1 distinct of 2, here 0 distinct of 0"),
        ({"files": {}}, "file out.txt: not written"),
        ({"files": {"out.txt": b"text", "core": b""}}, "file core: written here only"),
        ({"files": {"out.txt": b"other"}}, "file out.txt: line 1: 'text', here 'other'"),
    ],
)
def test_what_differs_is_said(changes, said):
    assert differences(SAME, replace(SAME, **changes)) == [said]


def test_the_first_line_that_differs_is_shown_once_for_all_ranks():
    streams = dict.fromkeys(SAME.streams, b"one\n[prefix] two\n")
    expected = "rank 0 try 0 stdout, rank 1 try 0 stdout: line 2: 'two\\n', here '[prefix] two\\n'"
    assert differences(SAME, replace(SAME, streams=streams)) == [expected]


def test_the_folder_the_frameworks_clock_and_addresses_are_no_difference(tmp_path):
    made = []
    for name in ("a", "b"):
        work = tmp_path / name / "work"
        (work / "__pycache__").mkdir(parents=True)
        (work / "__pycache__" / "x.pyc").write_bytes(name.encode())
        (work / "where.txt").write_text(f"{work}/x")
        (work / "draws-0.jsonl").write_text('["uuid", "1"]\n["uuid", "2"]\n')
        logs = tmp_path / name / "logs" / "id_x" / "attempt_0" / "0"
        logs.mkdir(parents=True)
        (logs / "stdout.log").write_text(
            f"{work}/prog.py\n[W1123 00:0{len(made)}:14.5 socket.cpp:7] late\nat 0x7f0{len(made)}aabbcc\n"
        )
        made.append(outcome(work, tmp_path / name / "logs", b"", 0, 1.0))
    assert made[0] == made[1]
    assert made[0].draws == {"uuid": ("1", "2")}
    assert made[0].streams == {"rank 0 try 0 stdout": b"<place>/work/prog.py\nat 0x\n"}


def test_calm_keeps_the_programs_own_brackets():
    assert calm(b"[W] mine\n[E1 x\n") == b"[W] mine\n[E1 x\n"
