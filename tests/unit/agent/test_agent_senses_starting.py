"""An agent that ends does not wait for what its senses are still importing."""

import asyncio
import importlib
import threading
from pathlib import Path

import pytest

from everstep.agent.senses import starting


def test_the_end_does_not_wait_for_an_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, may_end, has_ended = threading.Event(), threading.Event(), threading.Event()

    def slow(_name: str) -> None:
        begun.set()
        may_end.wait(60)
        has_ended.set()

    monkeypatch.setattr(importlib, "import_module", slow)
    monkeypatch.setattr(starting, "START_AFTER_S", 0.0)

    async def life() -> None:
        task = asyncio.create_task(
            starting.sense("n0", lambda _event: None, run_dir=tmp_path, home=tmp_path, rank_of=lambda _pid: None)
        )
        while not begun.is_set():
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(life())
    assert not has_ended.is_set()
    may_end.set()
    assert has_ended.wait(60)
