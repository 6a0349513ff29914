"""One training under `everstep run`, as bench/faults.py sees it: its steps, its journal, drills asked for over HTTP.

Reads the journal with a parser of its own, so that the benchmark checks everstep's record instead of trusting its
reader. Must not help the run in any way. Used by faults_matrix.py; the journal's parser by healthy_run.py, too.
"""

import json
import os
import struct
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from everstep.cli.ask import post
from everstep.errors import EverstepError
from everstep.journal.runs import find_run
from killing.killplan import POLICY
from measuring.launched import Launched

START_TIMEOUT_S = 120.0
POLL_S = 0.02
_STEP = struct.Struct("<q")


class StalledError(Exception):
    """The training does not do what it has to do before anything can be measured."""


class Journal:
    """The records of one journal as they come; only whole lines count, and only those that have `key`."""

    def __init__(self, path: Path, key: str = "event") -> None:
        self._path = path
        self._key = key
        self._offset = 0
        self.records: list[dict[str, Any]] = []

    def read(self) -> list[dict[str, Any]]:
        """The new ones."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as stream:
            stream.seek(self._offset)
            data = stream.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        new = [record for line in whole.splitlines() if self._key in (record := json.loads(line))]
        self.records += new
        return new

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [record["event"] for record in self.records if record["event"]["type"] == kind]

    def actions(self, kind: str) -> list[dict[str, Any]]:
        return [action for record in self.records for action in record.get("actions", ()) if action["type"] == kind]


class Training:
    """A command, its folder, and what it says of itself. `launch` it with launched.launched(command, ...)."""

    def __init__(self, folder: Path, nproc: int, script: Sequence[str], policy: str = "") -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        self.run_dir = folder / "run"
        self.output = folder / "output.log"
        self.journal = Journal(self.run_dir / "journal.jsonl")
        self.steps = folder / "steps"
        config = folder / "everstep.toml"
        config.write_text(f"[policy]\n{POLICY}{policy}")
        self.env = {
            **os.environ,
            "EVERSTEP_HOME": str(folder),
            "TMPDIR": str(folder),
            "EVERSTEP_BENCH_STEPS": str(self.steps),
            "OMP_NUM_THREADS": "1",
        }
        ranks = ["--nproc-per-node", str(nproc), "--max-restarts", "10000", "--config", str(config)]
        self.command = [sys.executable, "-m", "everstep", "run", *ranks, "--run-dir", str(self.run_dir), *script]

    def step(self) -> int:
        """Newest step that rank 0 has done; -1 for none."""
        try:
            data = self.steps.read_bytes()
        except FileNotFoundError:
            return -1
        return _STEP.unpack(data)[0] if len(data) == _STEP.size else -1

    def until_step(self, step: int, running: Launched, limit_s: float = START_TIMEOUT_S) -> None:
        """Raises StalledError."""
        deadline = time.monotonic() + limit_s
        while self.step() < step:
            if running.exit_code() is not None:
                raise StalledError(f"ended with {running.exit_code()} before step {step}: {running.last_output(600)}")
            if time.monotonic() > deadline:
                raise StalledError(f"no step {step} within {limit_s:g} s; at {self.step()}")
            time.sleep(POLL_S)

    def drill(self, kind: str, rank: int, options: dict[str, Any]) -> str:
        """Its id. Raises StalledError when the controller does not want to."""
        body: dict[str, Any] = {"kind": kind, "rank": rank}
        if options:
            body["options"] = options
        try:
            return str(post(find_run(str(self.run_dir)), "/api/drill", body)["drill"])
        except EverstepError as error:
            raise StalledError(f"drill {kind} was not taken: {error}") from error
