"""Versions of the user's program: what the ranks run, who changed it, and what became of the change."""

import enum

import msgspec


class Version(msgspec.Struct, frozen=True, kw_only=True):
    """One state of the user's program: its code, arguments and environment. v0 is what the run was started with."""

    id: str = "v0"
    source: str = ""  # "git 3f2c1a9", "folder /home/anna/job"; empty: the code is that of the version before
    code: str = ""  # folder that holds the copy; empty: the code is where the user has it
    root: str = ""  # the user's folder that `code` stands for: what was looked up below it is looked up in `code`
    args: tuple[str, ...] | None = None  # None: as the run was started
    env: dict[str, str] = {}  # on top of the environment that the run was started with
    variables: dict[str, str] = {}  # the same, name: the version whose file of values has it (`beside.variables`)
    is_urgent: bool = False
    by: str = ""
    why: str = ""
    at: float = 0.0  # when it was asked for


class Stage(enum.StrEnum):
    """Where a version is on its way. From `checking` it goes to `waiting` or `refused`, from there on as words say."""

    CHECKING = "checking"  # a node looks whether it can start
    REFUSED = "refused"  # it cannot start, and never did
    WAITING = "waiting"  # for the next interruption, or for its time
    SUPERSEDED = "superseded"  # a newer one took its place before it had trained
    RUNNING = "running"  # started, and has not shown yet that it trains
    TRAINED = "trained"  # it did enough new steps: what a worse one goes back to
    ROLLED_BACK = "rolled-back"  # it failed, and is never started again by itself


OPEN = (Stage.CHECKING, Stage.WAITING, Stage.RUNNING)
"""Stages in which time or a step can decide something."""

FIRST = Version()
