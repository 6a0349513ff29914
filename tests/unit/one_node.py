"""A running generation on one node, for the watches of the controller."""

from everstep.core.state.phases import Phase
from everstep.core.state.schema import Member, Role, State, Worker


def running(num_ranks: int) -> State:
    return State(
        phase=Phase.RUNNING,
        generation=0,
        slots=("n0",),
        members={"n0": Member(node="n0", host="h", pid=1, role=Role.ACTIVE, slot=0)},
        workers={rank: Worker(rank=rank, node="n0") for rank in range(num_ranks)},
    )
