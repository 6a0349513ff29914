"""Time that each rank needed per step, round by round, beside the journal: `paces.json`. The controller writes it after
each round of the agents, and the pages read it. It is not part of the run's record: without it, only the straggler map
is missing."""

from pathlib import Path

import msgspec

from everstep.errors import JournalError
from everstep.journal.beside.tables import read_table
from everstep.linux.files import write_whole

NAME = "paces.json"
MAX_BYTES = 8 << 20


class PaceRound(msgspec.Struct, frozen=True, kw_only=True):
    at: float
    usual_s: float  # median over all ranks of their own time per step: what is not waiting for others
    compute_s: tuple[float | None, ...]  # of `Paces.ranks`; None: not measured in this round


class Paces(msgspec.Struct, frozen=True, kw_only=True):
    """The paces of the generation that ran last; the newest round last."""

    generation: int
    num_ranks: int  # of the job; `ranks` are the slowest of a large one
    num_measured: int  # in the newest round
    order: str  # what `ranks` are ordered by
    ranks: tuple[int, ...]
    nodes: tuple[str, ...]  # of `ranks`
    wait_s: tuple[float | None, ...]  # of `ranks`, in the newest round: in collectives, for others
    data_s: tuple[float | None, ...]  # ... and for the data loader
    rounds: tuple[PaceRound, ...]


def save(run_dir: Path, paces: Paces) -> None:
    """Raises OSError."""
    write_whole(run_dir / NAME, msgspec.json.encode(paces), mode=0o600)


def load(run_dir: Path) -> Paces | None:
    """The paces of the run; None: not written yet. Raises JournalError."""
    path = run_dir / NAME
    paces = read_table(path, Paces, MAX_BYTES)
    if paces is None:
        return None
    columns = (paces.nodes, paces.wait_s, paces.data_s, *(each.compute_s for each in paces.rounds))
    if any(len(column) != len(paces.ranks) for column in columns):
        raise JournalError(f"{path} is damaged: not a value for each rank. The next round of the run writes it again.")
    return paces
