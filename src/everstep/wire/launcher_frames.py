"""Frames between an agent, the agent that follows it, and their launcher. Types only, as in `wire.frames`, which lists
them."""

from typing import Annotated, Literal, NotRequired, TypedDict

# -- agent <-> launcher, over --keeper-fd ------------------------------------------------------------------------------


class Keeping(TypedDict):
    rank: int


class Keep(TypedDict):
    """With one arena. The agent's are kept by the launcher; the launcher's are those of other agents of the machine."""

    keep: Keeping


class Kept(TypedDict):
    """The launcher has sent all that it keeps."""

    kept: Literal["end"]


class Runs(TypedDict):
    """Whose ranks are there: what the drill lose-node forgets."""

    runs: list[int]


class Beat(TypedDict):
    """The agent is there."""

    beat: int


class ControllerWord(TypedDict):
    epoch: int
    url: NotRequired[str]
    confirmed_at: NotRequired[Annotated[float, "when enough other hosts last heard of this one (monotonic)"]]


class ControllerIs(TypedDict):
    """On several hosts: where the newest controller is."""

    controller: ControllerWord


# -- agent -> the agent after it, through a mailbox (agent/processes/mailbox.py) ---------------------------------------


class ParkedTwin(TypedDict):
    local_rank: int
    pid: int
    stage: str
    stdout: Annotated[str, "file with what the program had written when the twin was left"]
    stderr: str
    out_bytes: Annotated[int | None, "of it; None: all"]
    err_bytes: int | None
    reads: int
    is_last: bool
    has_imported: bool
    placed: Annotated[int, "which of the memfds has the program, its arguments and its environment"]


class Parked(TypedDict):
    """The twins that wait. With the agent's end of each one's socket, in this order, and after them the memfds."""

    twins: list[ParkedTwin]


# -- launcher <-> holders of an agent (agent/processes/holding.py), over --holders-fd ----------------------------------


class AgentIs(TypedDict):
    """The line is there, and its last process is the agent."""

    agent: Annotated[int, "process id"]


class AgentEnded(TypedDict):
    """Nothing that it left runs but its twins and its warden."""

    ended: Annotated[int, "process id; another one than the agent's: one of the line has ended"]
    at: float
    code: int | None
    signal: int | None
    next: Annotated[int, "process that can be the next agent; 0: none, the line is of no more use"]


class BeAgent(TypedDict):
    """With the file for its log and the agent's end of its line to the keeper."""

    be: Annotated[list[str], "arguments, without --keeper-fd"]
    process: Annotated[int, "whom this is for; if that one has been killed meanwhile, those above it do not obey"]
