"""Objects of a State, and what is given to them."""

from dataclasses import dataclass
from typing import Any, Protocol

from everstep.errors import SnapshotError

RANDOM = "everstep.random"
DDP_ORDER = "everstep.ddp_order"
OWN = frozenset({RANDOM, DDP_ORDER})
"""What State adds to the user's keywords; the same names as in `worker.snapshots.state`."""


class Stateful(Protocol):
    def state_dict(self) -> Any: ...  # noqa: ANN401
    def load_state_dict(self, state_dict: Any, /) -> Any: ...  # noqa: ANN401


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """Findings of `load_into` besides the objects' state."""

    step: int | None  # None: a checkpoint that does not say (torch.distributed.checkpoint's own)
    random: Any = None  # for worker.digests.random_state.restore; None: not known for this rank
    ddp_order: Any = None
    resharded: bool = False
    notes: tuple[str, ...] = ()  # what could not be as exact as usual, in sentences


def give_one(name: str, thing: Stateful, state: object) -> None:
    """Raises SnapshotError."""
    try:
        thing.load_state_dict(state)
    except Exception as error:
        raise SnapshotError(
            f"State({name}=...): the checkpoint does not fit the {type(thing).__name__} that was given "
            f"({type(error).__name__}: {error}). Build it as in the run that wrote the checkpoint, or start a new run"
        ) from error
