"""docs/local-wire.md against the types that both sides of each frame are written with."""

from pathlib import Path
from typing import is_typeddict

import msgspec
import pytest

from everstep.report.parts.local_wire import render_local_wire
from everstep.wire import frames, launcher_frames

ROOT = Path(__file__).parents[3]
KINDS = [kind for _, kinds in frames.CONVERSATIONS for kind in kinds]


def test_the_page_is_in_sync() -> None:
    expected = "run `python -m everstep.report.parts.local_wire > docs/local-wire.md`"
    assert (ROOT / "docs/local-wire.md").read_text() == render_local_wire(), expected


def test_each_frame_is_in_one_conversation() -> None:
    defined = {each for module in (frames, launcher_frames) for each in vars(module).values() if is_typeddict(each)}
    parts = {frames.MemoryAsked, frames.FaultTold, frames.IncompleteTold, frames.RestoreTold, frames.SizeTold,
             frames.DigestTold, frames.TwinTold, launcher_frames.Keeping, launcher_frames.ControllerWord,
             launcher_frames.ParkedTwin}  # fmt: skip
    assert len(KINDS) == len(set(KINDS))
    assert {*KINDS} | parts == defined


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_an_agent_can_check_each_of_them(kind: type) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(7, kind)
    if kind is not frames.Answer:  # has no field that every one has
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert({"unheard_of": 1}, kind)
