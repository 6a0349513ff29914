"""What the process that commits found worth saying is in the agent's log."""

import asyncio
import logging
from typing import Any

from everstep.agent.copies.persisting import Persisting
from everstep.model.actions import CommitCheckpoint

COMMIT = CommitCheckpoint(why="w", node="n0", root="/ck", step=4, world_size=1, keep=3, is_trusted=False)


class Answers:
    """In place of the process: what it would print."""

    async def run(self, *_: object, **__: object) -> dict[str, Any]:
        return {"path": "/ck/step-0000000004", "size_bytes": 1, "notes": ["step 1 is damaged"], "why": ""}


def test_notes_of_a_commit_are_logged_and_the_step_is_there(caplog):
    told: list[Any] = []

    async def commit() -> None:
        persisting = Persisting("n0", None, Answers(), told.append)  # type: ignore[arg-type]
        persisting.commit(COMMIT, lambda: True)
        await asyncio.gather(*persisting._commits.values())

    with caplog.at_level(logging.WARNING):
        asyncio.run(commit())
    assert [one.why for one in told] == [""]
    assert "checkpoint of step 4: step 1 is damaged" in caplog.text
