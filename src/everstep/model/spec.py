"""Specification of a run, as the user asked for it. Written once, in the first journal record."""

import enum
from typing import Annotated, TypeAlias

import msgspec

MAX_RANKS = 1 << 20
"""Eight times the largest published job. Readers of a journal make a row for each rank: one that lists more was not
written by us, and would fill the reader's memory."""

Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=MAX_RANKS)]
"""A count of ranks, nodes or slots; checked where it is read."""


class Mode(enum.StrEnum):
    """How much everstep may do by itself."""

    OBSERVE = "observe"  # explain only: a failed run ends, with the decision that would have been taken
    ADVISE = "advise"  # propose, and wait for `everstep approve`
    ACT = "act"  # do it


STDOUT, STDERR = 1, 2


def standard_streams(text: str, local_rank: int) -> int:
    """Bits of STDOUT and STDERR that torchrun's -r or -t names for this rank: "3", or "0:1,1:2". 0 where it names
    nothing for this rank, or cannot be parsed."""
    if text.isdigit():
        return int(text) & 3
    named = dict(part.split(":", 1) for part in text.split(",") if ":" in part)
    bits = named.get(str(local_rank), "")
    return int(bits) & 3 if bits.isdigit() else 0


class Launch(enum.StrEnum):
    """How the user's program is started on a rank."""

    SCRIPT = "script"  # python script.py
    MODULE = "module"  # python -m package.module
    RUN_PATH = "run_path"  # runpy.run_path, torchrun's --run-path
    COMMAND = "command"  # torchrun's --no-python: any executable; no runtime of ours inside


class RunSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The shape of the job. `num_slots * nproc_per_node` is the world size.

    It changes in a run only where `min_slots` and `max_slots` differ (`--nnodes MIN:MAX`). The state's own copy of this
    value then has the size of now; the one in the first record has MAX.
    """

    program: str
    args: tuple[str, ...] = ()
    launch: Launch = Launch.SCRIPT
    num_slots: Count = 1
    nproc_per_node: Count = 1
    min_slots: Count = 0  # the fewest nodes with which the job continues; 0: `num_slots`, always
    max_slots: Count = 0  # the most; 0: `num_slots`, always
    num_standby: Count = 0
    mode: Mode = Mode.ACT
    role: str = "default"  # torchrun's --role
    torch_version: str = ""
    cwd: str = ""
    redirects: str = "0"  # torchrun's -r: which streams stay off the terminal
    tee: str = "0"  # torchrun's -t: which are shown with a prefix, and written to files
    shown_local_ranks: tuple[int, ...] | None = None  # torchrun's --local-ranks-filter; None: all
    log_dir: str = ""  # before 0.2: where the logs are instead of <run_dir>/logs
    published_logs: tuple[str, ...] = ()  # folders in torchrun's --log-dir, by slot: streams that -r and -t name
    checkpoint_dir: str = ""  # root of the persistent tier, a folder or an fsspec URL; empty: memory only
    checkpoint_every_s: float = 600.0
    checkpoint_keep: int = 3
    code_copy: str = ""  # folder with a copy of the program's code as it was when the run was started
    code_root: str = ""  # the user's folder that it is a copy of
    code_why: str = ""  # why there is no copy
    rdzv_id: str = ""  # TORCHELASTIC_RUN_ID of the ranks; empty: the run's id
    virtual_local_rank: bool = False  # every rank is LOCAL_RANK 0 and sees one GPU
    on_hosts: bool = False  # nodes are on several hosts, which share no run directory
    unset: tuple[str, ...] = ()  # torchrun's variables that ranks do not get: those of another launcher lack them
    init_from: str = ""  # a checkpoint, of torch.distributed.checkpoint or ours, that the first step starts from

    def __post_init__(self) -> None:
        """Raises ValueError for a job that is larger than any."""
        if max(self.num_slots, self.max_slots) * self.nproc_per_node > MAX_RANKS:
            raise ValueError(f"{self.num_slots} x {self.nproc_per_node} ranks are more than {MAX_RANKS}")

    @property
    def world_size(self) -> int:
        return self.num_slots * self.nproc_per_node

    @property
    def is_elastic(self) -> bool:
        """Whether the number of nodes may change."""
        return 0 < self.min_slots < self.max_slots

    def ranks_of(self, slot: int) -> range:
        first = slot * self.nproc_per_node
        return range(first, first + self.nproc_per_node)
