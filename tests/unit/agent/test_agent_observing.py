"""The agent's part: points from logs, frames of ranks, garbage in both."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.agent.watching.log_points import MAX_BYTES, MAX_POINTS, LogPoints, LogTail
from everstep.agent.watching.observing import Observing
from everstep.model.facts import NumberPoint
from everstep.model.observations import DigestsReported, NumbersReported


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def test_only_whole_new_lines_are_read(tmp_path):
    path = tmp_path / "log"
    tail = LogTail(path)
    assert list(tail.lines()) == []
    append(path, "a\nb")
    assert list(tail.lines()) == ["a"]
    assert list(tail.lines()) == []
    append(path, "c\r10%\r20%\n")
    assert list(tail.lines()) == ["bc", "10%", "20%"]


def test_a_flood_is_skipped_and_counted(tmp_path):
    path = tmp_path / "log"
    tail = LogTail(path)
    append(path, "x" * (3 * MAX_BYTES) + "\nstep 7 loss 2.5\n")
    assert list(tail.lines())[-1] == "step 7 loss 2.5"
    assert tail.num_skipped_bytes > MAX_BYTES
    append(path, "y" * (2 * MAX_BYTES))
    assert len(list(tail.lines())) == 0
    assert len(tail._rest) <= MAX_BYTES


def test_a_file_that_was_cut_is_read_anew(tmp_path):
    path = tmp_path / "log"
    tail = LogTail(path)
    append(path, "first\n" * 10)
    assert len(list(tail.lines())) == 10
    path.write_text("second\n")
    assert list(tail.lines()) == ["second"]


@given(st.lists(st.binary(max_size=60), max_size=20))
def test_any_bytes_in_any_pieces_give_the_same_lines(tmp_path_factory, pieces):
    path = tmp_path_factory.mktemp("log") / "log"
    path.touch()
    tail, lines = LogTail(path), []
    for piece in [*pieces, b"\n"]:
        with path.open("ab") as file:
            file.write(piece)
        lines += list(tail.lines())
    whole = b"".join(pieces).replace(b"\r", b"\n") + b"\n"
    assert [line for line in lines if line] == [each.decode(errors="replace") for each in whole.split(b"\n") if each]


def test_points_of_both_files_and_not_too_many(tmp_path):
    out, err = tmp_path / "out", tmp_path / "err"
    log = LogPoints((out, err))
    append(out, "hello\nstep 1 loss 2.0\n")
    append(err, "{'loss': 1.5, 'grad_norm': nan}\n")
    points = log.new()
    assert points[0] == NumberPoint(step=1, loss=2.0)
    assert points[1].loss == 1.5
    assert math.isnan(points[1].grad_norm or 0.0)
    append(out, "".join(f"step {i} loss 1\n" for i in range(500)))
    assert [p.step for p in log.new()] == list(range(500 - MAX_POINTS, 500))


class Node:
    def __init__(self, folder: Path) -> None:
        self.events: list[Any] = []
        self.observing = Observing("n0", self.events.append)
        paths = [SimpleNamespace(stdout=folder / f"{rank}.out", stderr=folder / f"{rank}.err") for rank in range(2)]
        workers = {rank: SimpleNamespace(rank=rank, paths=paths[rank]) for rank in range(2)}
        self.group: Any = SimpleNamespace(generation=3, workers=workers)

    def frame(self, rank: int, frame: dict[str, Any]) -> None:
        self.observing.take(self.group, self.group.workers[rank], frame)

    def look(self) -> list[tuple[int, str, int]]:
        self.events.clear()
        self.observing.look(self.group)
        return [(n.rank, n.source, len(n.points)) for e in self.events for n in e.numbers]


def test_told_points_wait_for_the_next_look_unless_they_are_urgent(tmp_path):
    node = Node(tmp_path)
    node.frame(0, {"numbers": [[1, 2.0, None]], "urgent": False})
    assert node.events == []
    assert node.look() == [(0, "step", 1)]
    node.events.clear()
    node.frame(1, {"numbers": [[2, math.nan, 1.0], [3, None, None]], "urgent": True})
    (event,) = node.events
    assert isinstance(event, NumbersReported)
    assert (event.node, event.generation) == ("n0", 3)


def test_the_log_of_a_rank_that_says_its_numbers_is_not_read(tmp_path):
    node = Node(tmp_path)
    node.frame(0, {"numbers": [[1, 2.0, None]]})
    for rank in (0, 1):
        append(tmp_path / f"{rank}.out", "step 1 loss 2\n")
    assert node.look() == [(0, "step", 1), (1, "log", 1)]
    node.group.generation = 4
    append(tmp_path / "0.out", "step 2 loss 2\n")
    assert (0, "log", 2) in node.look(), "another generation, another life"


def test_digests_go_on_at_once(tmp_path):
    node = Node(tmp_path)
    node.frame(1, {"digest": {"step": 9, "values": {"w": "ab"}, "replicas": [0, 1], "missing": ""}})
    (event,) = node.events
    assert isinstance(event, DigestsReported)
    (digest,) = event.digests
    assert (digest.rank, digest.step, digest.values, digest.replicas) == (1, 9, {"w": "ab"}, (0, 1))


@pytest.mark.parametrize(
    "frame",
    [
        {"numbers": 3},
        {"numbers": [[1]]},
        {"numbers": [["a", 1, 2]]},
        {"numbers": [[1e999, 1, 2]]},
        {"numbers": [[10**30, 1, 2]]},
        {"digest": None},
        {"digest": {"step": 1}},
        {"digest": {"step": "x", "values": {}, "replicas": []}},
        {"digest": {"step": 1, "values": 7, "replicas": []}},
        {"digest": {"step": 1, "values": {str(i): "" for i in range(1000)}, "replicas": []}},
    ],
)
def test_garbage_is_refused_as_the_node_expects(tmp_path, frame):
    node = Node(tmp_path)
    with pytest.raises((KeyError, TypeError, ValueError, OverflowError)):
        node.frame(0, frame)
    assert node.look() == []


def test_a_frame_of_an_ended_group_is_dropped(tmp_path):
    node = Node(tmp_path)
    stranger: Any = SimpleNamespace(rank=0)
    node.observing.take(node.group, stranger, {"numbers": [[1, 2.0, None]]})
    assert node.look() == []


def test_a_rank_that_has_ended_is_read_once_more_alone(tmp_path):
    node = Node(tmp_path)
    for rank in range(2):
        append(node.group.workers[rank].paths.stdout, f"step 7 loss {rank}.5\n")
    node.observing.end(node.group, node.group.workers[1])
    (told,) = node.events
    assert [(each.rank, each.points[0].loss) for each in told.numbers] == [(1, 1.5)]
    node.observing.look(node.group)
    assert [each.rank for each in node.events[-1].numbers] == [0], "nothing is told twice"


def test_what_cannot_be_told_of_a_rank_that_has_ended_keeps_its_end_from_nobody(tmp_path):
    node = Node(tmp_path)
    node.observing.end(node.group, SimpleNamespace(rank=1))  # type: ignore[arg-type]
    assert node.events == []
