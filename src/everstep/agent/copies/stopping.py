"""The end of a generation's ranks on a node: a step to come, if there is time, the last snapshot, then the signal.

**A step to come**: a stop without hurry lets the ranks continue to a future step, and all end after that one. So no
step is begun that is then done again, and no sample is seen twice. If a rank cannot be asked in time, or does not get
there, the stop continues like any other.

**The last snapshot**: live ranks complete the snapshot of their last step, so that it is not done again. Whether there
is anything to wait for is read off the board, so a rank that publishes every step costs no time here. A rank that is
stopped, dead or unresponsive is not waited for; the others never wait longer than they are allowed to. The arena
guarantees that a save which does not finish spoils nothing.
"""

import asyncio
import logging
import time

from everstep.agent.memory.board import Board
from everstep.agent.ranks.workers import Group, Worker
from everstep.model.actions import StopWorkers
from everstep.model.facts import Exit, RankAccount
from everstep.probes.process import usage

LONGER_S = 5.0
"""When a rank that was neither ended nor let go continues by itself."""

LET_GO_AFTER_S = 0.2
"""Time after the signal: a program that handles it itself ends at the end of a step, perhaps of the next."""

_ASK_S = 1.0
_HOLD_POLL_S = 0.005

DEAF_S = 1.5
"""A watch thread that did not look for so long, three times its interval, will hardly answer: something holds the
GIL."""

DEAF_LIMIT_S = 0.3
"""Time that it gets all the same, and all of the time if it has looked meanwhile: then it was only late."""

_SAVE_POLL_S = 0.01
_STOPPED = "TtZX"

_log = logging.getLogger(__name__)


async def stop(group: Group, board: Board, action: StopWorkers, hurries: asyncio.Event) -> list[Exit]:
    """Stop the ranks; returns the exits that this caused. `hurries`: set when the stop is wanted at once."""
    if group.generation != action.generation:  # an older one: its snapshots are not resumed from
        return await group.stop(action.grace_s, action.signal)
    if action.after_step is not None:
        await _hold(group, board, action.after_step, action.after_s, hurries)
    await save(group, board, action.save_s)
    letting_go = asyncio.create_task(_let_go(group)) if action.after_step is not None else None
    try:
        return await group.stop(action.grace_s, action.signal)
    finally:
        if letting_go is not None:
            letting_go.cancel()


async def _hold(group: Group, board: Board, step: int, limit_s: float, hurries: asyncio.Event) -> str:
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
            await asyncio.sleep(_HOLD_POLL_S)
    _log.info("the ranks do not wait after step %d: %s", step, why)
    return why


def _is_done(account: RankAccount, step: int) -> bool:
    """... and its snapshot is complete."""
    return all(each is not None and each >= step for each in (account.last_step, account.published_step))


async def _let_go(group: Group) -> None:
    """Those that live still, a while after their signal."""
    await asyncio.sleep(LET_GO_AFTER_S)
    links = [worker.watch for worker in group.workers.values() if worker.is_alive and worker.watch is not None]
    await asyncio.gather(*(link.hold(None, 0.0, _ASK_S) for link in links))


async def _ask(worker: Worker, step: int, limit_s: float) -> str:
    if worker.watch is None or not worker.is_alive:
        return f"rank {worker.rank} cannot be asked"
    return await worker.watch.hold(step, limit_s, _ASK_S)


async def save(group: Group, board: Board, limit_s: float) -> None:
    """Ask the ranks that have something to save, and wait for the answers or for `limit_s`. Raises nothing of its
    own."""
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
        await asyncio.sleep(_SAVE_POLL_S)
