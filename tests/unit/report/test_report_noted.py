"""What `everstep status` says of ranks that make no progress, and of what counted as progress."""

import pytest

from everstep.journal.view import GenerationView, RunView
from everstep.model.facts import Exit, RankAccount, RankNote
from everstep.report.parts.noted import note_lines, progress_text

NOW = 100.0


def view(*accounts: RankAccount, ended: tuple[int, ...] = ()) -> RunView:
    made = RunView(run="r", everstep_version="", policy={})
    generation = GenerationView(number=0, begun_at=0.0, seq=1, resume_step=None, why="")
    generation.accounts = {account.rank: account for account in accounts}
    generation.exits = {rank: Exit(rank=rank, at=NOW, code=0) for rank in ended}
    made.generations = [generation]
    return made


def account(rank: int, **known: object) -> RankAccount:
    return RankAccount(rank=rank, spawned_at=1.0, **known)  # type: ignore[arg-type]


def busy(since: float, says: str = "uploading") -> RankNote:
    return RankNote(kind="busy", says=says, since=since)


def ending(since: float, says: str = "") -> RankNote:
    return RankNote(kind="ending", says=says, since=since)


@pytest.mark.parametrize(
    ("notes", "expected"),
    [
        ({}, []),
        ({0: busy(58.0)}, ["rank 0 says that it is busy: uploading, for 42.0s"]),
        ({0: busy(58.0, "")}, ["rank 0 says that it is busy, for 42.0s"]),
        ({0: busy(58.0), 1: busy(60.0)}, ["ranks 0-1 say that they are busy: uploading, for 42.0s"]),
        (
            {3: ending(74.0, "train.py:88 upload")},
            ["rank 3 has finished its program 26.0s ago, but its process does not end: it is at train.py:88 upload"],
        ),
        (
            {2: ending(74.0), 3: ending(74.0)},
            ["ranks 2-3 have finished their programs 26.0s ago, but their processes do not end"],
        ),
    ],
)
def test_ranks_that_are_left_alone(notes, expected):
    accounts = [account(rank, note=notes.get(rank)) for rank in range(4)]
    assert note_lines(view(*accounts), NOW) == expected


def test_ranks_that_have_ended_say_nothing():
    assert note_lines(view(account(0, note=ending(1.0)), ended=(0,)), NOW) == []
    assert progress_text(view(account(0, last_step=3, last_step_at=99.0), ended=(0,)), NOW) == ""


def test_a_thousand_reasons_are_one_screen():
    accounts = [account(rank, note=busy(1.0, f"part {rank}")) for rank in range(1000)]
    lines = note_lines(view(*accounts), NOW)
    assert (len(lines), lines[-1]) == (9, "and 992 more")


@pytest.mark.parametrize(
    ("accounts", "expected"),
    [
        ([], ""),
        ([account(0)], "none of rank 0 is known"),
        ([account(0, last_step=19, last_step_at=74.0)], "step 19 of rank 0 26.0s ago"),
        ([account(0, last_step=19, last_step_at=74.0, communicated_at=90.0)], "a collective of rank 0 10.0s ago"),
        ([account(0, rendezvous_done_at=40.0)], "the rendezvous of rank 0 1m 00s ago"),
        (
            [
                account(0, communicated_at=99.0),
                account(1, communicated_at=98.0),
                account(2, last_step=7, last_step_at=50.0),
            ],
            "step 7 of rank 2 50.0s ago; a collective of ranks 0-1 1.00s to 2.00s ago",
        ),
    ],
)
def test_the_last_sign_of_progress_by_kind_and_age(accounts, expected):
    assert progress_text(view(*accounts), NOW) == expected
