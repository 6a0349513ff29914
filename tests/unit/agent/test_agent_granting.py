"""Memory for snapshots: the rank that waits for it is always answered."""

import asyncio
import types

import pytest

from everstep.agent.memory import arenas
from everstep.agent.ranks import granting


class Told:
    def __init__(self) -> None:
        self.frames: list[dict[str, object]] = []

    def send(self, frame: dict[str, object], fds: tuple[int, ...] = ()) -> bool:
        self.frames.append(frame)
        return True


@pytest.mark.parametrize("at", ["make", "add"])
def test_whatever_goes_wrong_the_rank_that_waits_for_memory_is_answered(monkeypatch, at):
    def fails(*_args: object) -> int:
        raise RuntimeError("unforeseen")

    told = Told()
    worker = types.SimpleNamespace(rank=3, channel=told)
    held = types.SimpleNamespace(add=fails)
    monkeypatch.setattr(arenas, "make", fails if at == "make" else lambda *_: -1)
    refusal = asyncio.run(granting.grant(worker, granting.Asked(num_bytes=4096), 4, held))
    assert told.frames == [{"memory": "refused", "why": refusal.why, "free_bytes": None}]
    assert refusal.why == "our own failure: RuntimeError: unforeseen"
