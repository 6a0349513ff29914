"""Before ranks are stopped: those that live complete the snapshot of their last step, so that it is not done again.

Whether there is anything to wait for is read off the board, so a rank that publishes every step costs no time here. A
rank that is stopped, dead or deaf is not waited for; the others never wait longer than they are allowed to. Called by
the node before SIGTERM. That a save which does not finish spoils nothing is the arena's business.
"""

import asyncio
import logging
import time

from everstep.agent.memory.board import Board
from everstep.agent.ranks.workers import Group, Worker
from everstep.model.facts import RankAccount
from everstep.probes.process import usage

DEAF_S = 1.5
"""A watch thread that did not look for so long, three times its interval, will hardly answer: something holds the
interpreter lock."""

DEAF_LIMIT_S = 0.3
"""What it gets all the same, and all of the time if it has looked meanwhile: then it was only late."""

_POLL_S = 0.01
_STOPPED = "TtZX"

_log = logging.getLogger(__name__)


async def save(group: Group, board: Board, limit_s: float) -> None:
    """Ask whoever has something to save, and wait for the answers or for `limit_s`. Raises nothing of its own."""
    if limit_s <= 0:
        return
    began = time.monotonic()
    asked = [worker for worker in group.workers.values() if wants_save(worker, board.account(worker.local_rank))]
    whys = await asyncio.gather(*(_save(worker, board, limit_s) for worker in asked))
    for worker, why in zip(asked, whys, strict=True):
        step = board.account(worker.local_rank).published_step
        _log.info("rank %d was asked to save: %s; its newest snapshot is of step %s", worker.rank, why or "done", step)
    if asked:
        _log.info("saving before the stop took %.3f s", time.monotonic() - began)


def wants_save(worker: Worker, account: RankAccount) -> bool:
    """It lives, keeps snapshots, and has completed a step whose snapshot is not complete."""
    if not worker.is_alive or worker.watch is None or account.last_step is None or not account.counts_own_steps:
        return False
    if account.published_step is None:  # after several steps: it keeps none, or cannot
        return account.num_steps <= 1
    return account.published_step < account.last_step


async def _save(worker: Worker, board: Board, limit_s: float) -> str:
    """Empty, or why not."""
    use = usage(worker.pid)
    if use is None or use.state in _STOPPED:
        return f"its process answers nothing (state {use.state if use is not None else 'gone'})"
    assert worker.watch is not None
    _, looked_at = board.communication(worker.local_rank)
    had_spoken = worker.watch.has_spoken
    is_deaf = not had_spoken if looked_at is None else time.time() - looked_at > DEAF_S
    asking = asyncio.create_task(worker.watch.save(limit_s))
    done = asyncio.create_task(_published(worker, board, board.account(worker.local_rank).last_step or 0))
    try:
        if is_deaf:
            await asyncio.wait((asking, done), timeout=DEAF_LIMIT_S, return_when=asyncio.FIRST_COMPLETED)
            seen = board.communication(worker.local_rank)[1], worker.watch.has_spoken
            if not (asking.done() or done.done()) and seen == (looked_at, had_spoken):
                return "its watch thread does not answer"
        await asyncio.wait((asking, done), return_when=asyncio.FIRST_COMPLETED)
        return "" if done.done() else asking.result()
    finally:
        asking.cancel()
        done.cancel()


async def _published(worker: Worker, board: Board, step: int) -> None:
    """A copy that was under way is complete: no answer is needed."""
    while True:
        published = board.account(worker.local_rank).published_step
        if published is not None and published >= step:
            return
        await asyncio.sleep(_POLL_S)
