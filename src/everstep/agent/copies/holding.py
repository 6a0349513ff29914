"""A stop that nobody has to hurry for: the ranks go on to a step that is still to come, and all end after that one.

So no step is begun that is then done again, and no sample is seen twice. Where a rank cannot be told in time, or does
not get there, the stop goes on as any other. Called by the node before ranks save and get their signal.
"""

import asyncio
import logging
import time

from everstep.agent.memory.board import Board
from everstep.agent.ranks.workers import Group, Worker
from everstep.model.facts import RankAccount

LONGER_S = 5.0
"""A rank that was not ended or let go by then goes on by itself."""

LET_GO_AFTER_S = 0.2
"""After the signal: a program that handles it itself ends at the end of a step, perhaps of the next."""

_ASK_S = 1.0
_POLL_S = 0.005

_log = logging.getLogger(__name__)


async def hold(group: Group, board: Board, step: int, limit_s: float, hurries: asyncio.Event) -> str:
    """Until all ranks of this node have done the step and wait; empty, or why they do not. `hurries`: the stop is
    wanted at once. Raises nothing of its own."""
    until = time.monotonic() + limit_s
    workers = list(group.workers.values())
    whys = await asyncio.gather(*(_ask(worker, step, limit_s + LONGER_S) for worker in workers))
    why = next(filter(None, whys), "")
    while not why:
        if all(_is_done(board.account(worker.local_rank), step) for worker in workers):
            _log.info("all ranks of this node have done step %d, and wait", step)
            return ""
        if not all(worker.is_alive for worker in workers):
            why = "a rank has ended"
        elif hurries.is_set():
            why = "the stop is wanted at once"
        elif time.monotonic() > until:
            why = f"not within {limit_s:.1f} s"
        else:
            await asyncio.sleep(_POLL_S)
    _log.info("the ranks do not wait after step %d: %s", step, why)
    return why


def _is_done(account: RankAccount, step: int) -> bool:
    """... and its snapshot is complete."""
    return all(each is not None and each >= step for each in (account.last_step, account.published_step))


async def let_go(group: Group) -> None:
    """Those that live still, a while after their signal."""
    await asyncio.sleep(LET_GO_AFTER_S)
    links = [worker.watch for worker in group.workers.values() if worker.is_alive and worker.watch is not None]
    await asyncio.gather(*(link.hold(None, 0.0, _ASK_S) for link in links))


async def _ask(worker: Worker, step: int, limit_s: float) -> str:
    if worker.watch is None or not worker.is_alive:
        return f"rank {worker.rank} cannot be asked"
    return await worker.watch.hold(step, limit_s, _ASK_S)
