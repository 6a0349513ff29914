"""Frames between the processes of one machine: the fields of each frame that `wire.local` carries as JSON.

Types only. A rank names them for the type checker alone (`TYPE_CHECKING`), so they cost it nothing; an agent checks a
rank's frames with them (`agent/watching/rank_frames.py`), because a rank may send anything. docs/local-wire.md is
generated from this file: docstrings are its sentences, and `Annotated` its remarks.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, NotRequired, TypeAlias, TypedDict

from everstep.wire.launcher_frames import AgentEnded, AgentIs, BeAgent, Beat, ControllerIs, Keep, Kept, Parked, Runs

# -- agent -> rank ---------------------------------------------------------------------------------------------------


class Drill(TypedDict):
    """Then the signal `SIGRTMIN+8`, whose handler in the rank reads the link. Silent faults other than a loop or a
    native call are answered by `Drilled`."""

    do: Literal["drill"]
    kind: Annotated[str, "one of `core/faults/drills.py`"]
    id: str
    options: dict[str, Any]


class Assign(TypedDict):
    """The assignment of a process. With it come the rank's 0, 1 and 2 (with `streams`), the board, the rank's own
    arenas, oldest first, those of `siblings` and of `former`, read-only, and, with `watch`, the socket of the watch
    thread."""

    do: Literal["assign"]
    rank: int
    local_rank: int
    generation: int
    world_size: int
    env: Annotated[dict[str, str], "the whole environment, not an addition to it"]
    program: str
    args: list[str]
    launch: Annotated[str, "`model.spec.Launch`"]
    cwd: str
    error_file: str
    resume_step: int | None
    drills: Annotated[list[dict[str, Any]], "requests that the machine has from before"]
    moved: NotRequired[
        Annotated[tuple[str, str] | None, "what is below the first directory is looked up below the second"]
    ]
    streams: NotRequired[bool]
    stdout: NotRequired[Annotated[str, "a file, where the streams do not come as descriptors"]]
    stderr: NotRequired[str]
    early: NotRequired[Annotated[list[str], "modules that may be imported before the rank is parked"]]
    knows_modules: NotRequired[Annotated[bool, "the agent knows already what the ranks import"]]
    parks_once: NotRequired[bool]
    why: NotRequired[Annotated[str, "this generation was started, for people"]]
    digest_every: NotRequired[Annotated[int, "steps; 0: no digests"]]
    divides: NotRequired[bool]
    snapshot_buffers: NotRequired[int]
    no_snapshots: NotRequired[Annotated[str, "why the rank keeps none"]]
    restore_path: NotRequired[Annotated[str, "a checkpoint; empty: from memory"]]
    init_from: NotRequired[str]
    watch: NotRequired[bool]
    siblings: NotRequired[Annotated[list[tuple[int, int]], "rank, number of its arenas"]]
    former: NotRequired[Annotated[tuple[int, list[int]], "ranks then (0: as many as now), whose memory came"]]
    sizes: NotRequired[Annotated[tuple[int, int, int], "nodes: now, least, most"]]


class Memory(TypedDict):
    """Answers `AskMemory`; with the arena, if it is granted."""

    memory: Literal["granted", "refused"]
    bytes: NotRequired[int]
    why: NotRequired[str]
    free_bytes: NotRequired[int | None]


# -- rank -> agent ---------------------------------------------------------------------------------------------------


MarkName: TypeAlias = Literal["entered", "rendezvous_begun", "rendezvous_done", "first_step"]


class Mark(TypedDict):
    """A doorbell: what was reached is on the board."""

    mark: MarkName


class Begins(TypedDict):
    """The program runs, natively."""

    begins: Annotated[int, "process id"]


class Listens(TypedDict):
    """torch has been imported: the handler of drills is there."""

    listens: Annotated[int, "process id"]


class Modules(TypedDict):
    """Once, after the first step."""

    modules: Annotated[list[str], "that a twin may import ahead"]
    changed: Annotated[dict[str, str | None], "variables, since the rank was parked"]
    took_s: Annotated[float, "from then to now: to import them took no longer"]


class MemoryAsked(TypedDict):
    bytes: int
    buffers: NotRequired[int]


class AskMemory(TypedDict):
    """Answered by `Memory`."""

    memory: MemoryAsked


class FaultTold(TypedDict):
    where: str
    why: str


class Fault(TypedDict):
    """Something of ours failed in the rank, and was swallowed."""

    fault: FaultTold


Source: TypeAlias = Literal["memory", "disk"]


class RestoreTold(TypedDict):
    step: int | None
    source: Source
    where: NotRequired[str]
    why: NotRequired[str]
    is_damaged: NotRequired[Annotated[bool, "else it could not be read"]]
    is_unfit: NotRequired[Annotated[bool, "the program does not load it"]]
    rank: NotRequired[Annotated[int, "whose it was, if not the teller's"]]


class IncompleteTold(TypedDict):
    step: int
    why: str


class Incomplete(TypedDict):
    """The State leaves out what a step changes: this rank keeps no snapshots."""

    incomplete: IncompleteTold


class RestoreFailed(TypedDict):
    """Just before the rank raises."""

    restore_failed: RestoreTold


class SizeTold(TypedDict):
    world_size: Annotated[int, "0: as many ranks as there are"]
    why: str


class SizeFixed(TypedDict):
    """The program can continue only with so many ranks."""

    size_fixed: SizeTold


class Numbers(TypedDict):
    numbers: Annotated[Sequence[tuple[int | None, float | None, float | None]], "step, loss, norm of the gradient"]
    urgent: bool


class DigestTold(TypedDict):
    step: int
    values: Annotated[dict[str, str], "by range of parameters"]
    replicas: Annotated[Sequence[int], "ranks"]
    stride: int
    missing: str


class Digest(TypedDict):
    digest: DigestTold


class Counts(TypedDict):
    counts: Annotated[list[list[int]], "first step, steps, optimizer steps, collectives"]


class Drilled(TypedDict):
    """Done; or armed, to come at the next step or collective, when it is reported again; or, with a reason, refused."""

    drilled: str | None
    why: str
    is_armed: bool


class TwinTold(TypedDict):
    stage: str
    out: Annotated[int, "bytes that the rank had written to stdout"]
    err: int
    reads: Annotated[int, "files that the program had read"]
    last: Annotated[int, "1: left at the last moment at which the rank could leave one"]


class TwinLeft(TypedDict):
    """The rank is parked; with the agent's end of its twin's socket."""

    twin: TwinTold


class NoTwin(TypedDict):
    no_twin: Annotated[str, "why"]


class Examined(TypedDict):
    """From the program of an examination."""

    examined: dict[str, Any]


# -- agent -> twin -----------------------------------------------------------------------------------------------------


class Wake(TypedDict):
    """Answered by `awake` or `stale`."""

    do: Literal["wake"]
    env: dict[str, str]


class Split(TypedDict):
    """Answered by `split`: there are two twins now."""

    do: Literal["split"]


class ForkAhead(TypedDict):
    """Answered by `ahead`: the process that continues at the next `Wake` is there."""

    do: Literal["ahead"]


class Import(TypedDict):
    """Answered by `ready` or `spoiled`."""

    do: Literal["import"]
    modules: list[str]
    changed: dict[str, str | None]


class Adopt(TypedDict):
    """After the death of the twin's agent, by the next one, whose child it is. Answered by `here`."""

    do: Literal["adopt"]
    agent: Annotated[int, "process id"]


# -- twin -> agent -----------------------------------------------------------------------------------------------------

TwinSays = TypedDict(
    "TwinSays",
    {
        "is": Literal["here", "awake", "stale", "split", "ahead", "ready", "spoiled", "over"],
        "pid": NotRequired[Annotated[int, "`here`: its own; `awake`, `split`, `ahead`: of the process that it made"]],
        "why": NotRequired[Annotated[str, "`stale`, `spoiled`, `over`"]],
        "num_modules": NotRequired[Annotated[int, "`here`, `ready`"]],
        "module": NotRequired[Annotated[str, "`spoiled`: after whose import it could not be forked any more"]],
        "took_s": NotRequired[Annotated[float, "`ready`"]],
        "failed": NotRequired[Annotated[dict[str, str], "`ready`: by module, the error"]],
    },
)
TwinSays.__doc__ = """`here` once, unasked, and after `Adopt`. With `awake` comes the link of the process that
    continues, with `split` the socket of the other twin."""


# -- agent -> watch thread, on a socket of its own: each is answered by an `Answer` with the same number ---------------


class Dump(TypedDict):
    """torch's flight record into the file, with the newest calls of collectives under `everstep_calls`."""

    do: Literal["dump"]
    id: NotRequired[int]
    path: str


class Stacks(TypedDict):
    """A request for the stacks of all threads of the rank."""

    do: Literal["stacks"]
    id: NotRequired[int]


class Entered(TypedDict):
    """When the rank entered its collectives: once per round of the fail-slow vote."""

    do: Literal["entered"]
    id: NotRequired[int]


class Save(TypedDict):
    """The snapshot of the last completed step, whose copy may be under way, or not begun."""

    do: Literal["save"]
    id: NotRequired[int]
    limit_s: float


class HoldStep(TypedDict):
    """No step follows this one, which is still to come; `None`: the next one may begin."""

    do: Literal["hold"]
    id: NotRequired[int]
    step: int | None
    limit_s: float


# -- watch thread -> agent ---------------------------------------------------------------------------------------------


class Spill(TypedDict):
    """Its first frame, with a memfd to which faulthandler writes all frames when the rank gets the signal."""

    spill: Annotated[int, "number of the descriptor in the rank"]
    signal: int


class Answer(TypedDict, total=False):
    """With `entered` come two memfds: torch's flight record, and the newest calls as words of 64 bits (thread, begin,
    end)."""

    dumped: Annotated[int | None, "to this question"]
    sampled: Annotated[int | None, "to this question"]
    saved: Annotated[int | None, "to this question"]
    held: Annotated[int | None, "to this question"]
    entered: Annotated[int | None, "to this question"]
    why: Annotated[str, "not; empty or absent: done"]
    threads: Annotated[list[Any], "`sampled`: in py-spy's form"]
    step: Annotated[int, "`saved`"]
    took_s: Annotated[float, "`entered`: CPU time"]
    groups: Annotated[list[Any], "`entered`: name, title, ranks of each"]


RankTells: TypeAlias = (
    Mark | Begins | Listens | Modules | AskMemory | Fault | Incomplete | RestoreFailed | SizeFixed | Numbers | Digest
    | Counts | Drilled | TwinLeft | NoTwin | Examined
)  # fmt: skip
ToTwin: TypeAlias = Wake | Split | ForkAhead | Import | Adopt
ToWatch: TypeAlias = Dump | Stacks | Entered | Save | HoldStep

CONVERSATIONS: tuple[tuple[str, tuple[type, ...]], ...] = (
    ("Agent to rank", (Assign, Drill, Memory)),
    ("Rank to agent", (Mark, Begins, Listens, Modules, AskMemory, Fault, Incomplete, RestoreFailed, SizeFixed, Numbers,
                       Digest, Counts, Drilled, TwinLeft, NoTwin, Examined)),
    ("Agent to twin", (Wake, Split, ForkAhead, Import, Adopt)),
    ("Twin to agent", (TwinSays,)),
    ("Agent to watch thread", (Dump, Stacks, Entered, Save, HoldStep)),
    ("Watch thread to agent", (Spill, Answer)),
    ("Agent and launcher", (Keep, Kept, Runs, Beat, ControllerIs)),
    ("Agent and the agent after it", (Parked,)),
    ("Launcher and holders of an agent", (AgentIs, AgentEnded, BeAgent)),
)  # fmt: skip
"""Which side sends what, in the order of the page."""
