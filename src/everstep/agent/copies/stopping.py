"""The end of a generation's ranks on a node: a step to come, if there is time, the last snapshot, then the signal."""

import asyncio

from everstep.agent.copies import holding, saving
from everstep.agent.memory.board import Board
from everstep.agent.ranks.workers import Group
from everstep.model.actions import StopWorkers
from everstep.model.facts import Exit


async def stop(group: Group, board: Board, action: StopWorkers, hurries: asyncio.Event) -> list[Exit]:
    """The exits that this caused. `hurries`: it is wanted at once."""
    if group.generation != action.generation:  # an older one: nobody goes on from it
        return await group.stop(action.grace_s, action.signal)
    if action.after_step is not None:
        await holding.hold(group, board, action.after_step, action.after_s, hurries)
    await saving.save(group, board, action.save_s)
    letting_go = asyncio.create_task(holding.let_go(group)) if action.after_step is not None else None
    try:
        return await group.stop(action.grace_s, action.signal)
    finally:
        if letting_go is not None:
            letting_go.cancel()
