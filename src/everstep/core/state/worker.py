"""One rank of the current generation, as far as it is known."""

import msgspec

from everstep.model.facts import Exit, RankAccount


class Worker(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    rank: int
    node: str
    started: bool = False  # the agent confirmed the process
    account: RankAccount | None = None
    exit: Exit | None = None
