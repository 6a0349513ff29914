"""Programs of bench/gpu_programs under `everstep run`, as a user would start them, and what their journal says."""

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from gpu_running.part import Request
from measuring.launched import Launched, adopt_orphans, launched


class EndedError(Exception):
    """The run did not do what was waited for."""


class Run:
    """One run."""

    def __init__(self, running: Launched, folder: Path) -> None:
        self.running = running
        self.folder = folder

    def wait(self, limit_s: float) -> None:
        """Until it ends well. Raises EndedError."""
        code = self.running.wait(limit_s)
        if code != 0:
            what = f"still runs after {limit_s:.0f} s" if code is None else f"ended with {code}"
            raise EndedError(f"everstep run {what}: {self.running.last_output(700)}")

    def records(self) -> list[dict[str, Any]]:
        """The whole lines of the journal."""
        path = self.folder / "run" / "journal.jsonl"
        found = []
        for line in path.read_text().splitlines() if path.exists() else ():
            with contextlib.suppress(ValueError):
                found.append(json.loads(line))
        return found

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [record["event"] for record in self.records() if record.get("event", {}).get("type") == kind]

    def actions(self, kind: str) -> list[dict[str, Any]]:
        return [each for record in self.records() for each in record.get("actions", ()) if each["type"] == kind]

    def until(self, is_there: Any, limit_s: float, what: str) -> Any:  # noqa: ANN401
        """What `is_there()` returns once that is something. Raises EndedError."""
        deadline = time.monotonic() + limit_s
        while not (found := is_there()):
            if self.running.exit_code() is not None:
                code = self.running.exit_code()
                raise EndedError(f"the run ended with {code} before {what}: {self.running.last_output(700)}")
            if time.monotonic() > deadline:
                raise EndedError(f"not within {limit_s:.0f} s: {what}: {self.running.last_output(400)}")
            time.sleep(0.1)
        return found


@contextlib.contextmanager
def run(
    request: Request,
    name: str,
    program: str,
    arguments: Sequence[object],
    *,
    ranks: int = 1,
    policy: str = "",
    env: dict[str, str] | None = None,
) -> Iterator[Run]:
    """For the length of the block; then all of it is ended."""
    folder = request.path / name
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "everstep.toml"
    config.write_text(f"[policy]\n{policy}\n")
    line = [sys.executable, "-m", "everstep", "run", "--config", str(config), "--run-dir", str(folder / "run")]
    line += ["--standalone", "--nproc-per-node", str(ranks), "--max-restarts", "20", str(request.programs / program)]
    adopt_orphans()
    # A machine without a network has no name server either: gloo would wait three seconds for one.
    whole = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", **(env or {})}
    with launched([*line, *map(str, arguments)], env=whole, output=folder / "output.log") as one:
        yield Run(one, folder)
