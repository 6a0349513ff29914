"""Runs one part in a process of its own, reads its figures as they come, and ends all of it at its limit."""

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gpu_running.keeping import DONE, FAILED, OUT_OF_TIME, RUNNING, Kept
from gpu_running.parts import Part
from measuring.launched import launched

_POLL_S = 0.2
_LAST_BYTES = 1500


def run_part(
    part: Part,
    kept: Kept,
    request: dict[str, Any],
    python: str,
    env: Mapping[str, str],
    limit_s: float,
    on_change: Callable[[], None],
) -> None:
    """`on_change` is called whenever there is more in `kept`."""
    figures, output = Path(request["out"]), Path(request["folder"]) / "output.log"
    output.parent.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    kept.state = RUNNING
    on_change()
    command = [python, str(part.script), json.dumps({**request, "limit_s": limit_s})]
    with launched(command, env=env, output=output) as running:
        while (code := running.wait(_POLL_S)) is None and time.monotonic() - began < limit_s:
            if _read(figures, kept):
                on_change()
        last = running.last_output(_LAST_BYTES).strip()
    _read(figures, kept)
    kept.took_s = round(time.monotonic() - began, 1)
    if code is None:
        kept.state, kept.why = OUT_OF_TIME, f"ended after {limit_s:.0f} s. {last[-300:]}"
    elif code != 0:
        kept.state, kept.why = FAILED, f"ended with {code}. {last[-300:]}"
    else:
        kept.state = DONE
    on_change()


def _read(figures: Path, kept: Kept) -> bool:
    """Whether there are more."""
    lines = figures.read_text().splitlines() if figures.exists() else []
    found = []
    for line in lines:
        try:
            found.append(json.loads(line))
        except ValueError:
            break  # it is being written
    is_more = len(found) > len(kept.figures)
    kept.figures = found
    return is_more
