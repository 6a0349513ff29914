"""A worker process's assignment: parsed once, checked, then only read.

The frame comes from this rank's own agent over an inherited socket; a frame that does not fit means two versions of
everstep on one machine, and the worker exits with a message that says so.
"""

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from everstep.wire.frames import Assign


class AssignmentError(Exception):
    """The frame is not an assignment of this version."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """See `Assign` in docs/local-wire.md."""

    rank: int
    local_rank: int
    generation: int
    world_size: int
    env: dict[str, str]  # the whole environment, not an addition to it
    program: str
    args: tuple[str, ...]
    launch: str  # model.spec.Launch, as text
    cwd: str
    stdout: str  # a file; empty: the streams came as descriptors
    stderr: str
    error_file: str
    resume_step: int | None
    snapshot_buffers: int
    restore_path: str
    init_from: str


def parse(frame: "Assign") -> Assignment:
    """Raises AssignmentError."""
    try:
        resume_step = frame["resume_step"]
        return Assignment(
            rank=int(frame["rank"]),
            local_rank=int(frame["local_rank"]),
            generation=int(frame["generation"]),
            world_size=int(frame["world_size"]),
            env={str(name): str(value) for name, value in frame["env"].items()},
            program=str(frame["program"]),
            args=tuple(str(arg) for arg in frame["args"]),
            launch=str(frame["launch"]),
            cwd=str(frame["cwd"]),
            stdout=str(frame.get("stdout") or ""),
            stderr=str(frame.get("stderr") or ""),
            error_file=str(frame["error_file"]),
            resume_step=None if resume_step is None else int(resume_step),
            snapshot_buffers=int(frame.get("snapshot_buffers") or 2),
            restore_path=str(frame.get("restore_path") or ""),
            init_from=str(frame.get("init_from") or ""),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise AssignmentError(f"not an assignment: {type(error).__name__}: {error}") from error


def former(frame: "Assign") -> tuple[int, list[int]]:
    """The number of ranks of the generation that the state is spread from (0: it is not), and those whose memory came
    along, one descriptor each. Raises AssignmentError."""
    try:
        world_size, ranks = frame.get("former") or (0, ())
        return int(world_size), [int(rank) for rank in ranks]
    except (TypeError, ValueError) as error:
        raise AssignmentError(f"not an assignment: {type(error).__name__}: {error}") from error


def siblings(frame: "Assign") -> list[tuple[int, int]]:
    """The node's other ranks, and how many descriptors of their memory came along. Raises AssignmentError."""
    try:
        return [(int(rank), int(count)) for rank, count in frame.get("siblings") or ()]
    except (TypeError, ValueError) as error:
        raise AssignmentError(f"not an assignment: {type(error).__name__}: {error}") from error
