"""What the tests of integrations share: a program is run twice, once in peace and once with kills, and must not differ.

Every rank of such a program appends a line per step (`4 ...`), or per batch of a step (`4:a ...`), to
`$TRAIL/rank-<r>.steps` and writes its last word (a digest of the
parameters) to `rank-<r>.final`. A step that is done again writes its line again: it must be the same line.
"""

import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from free_ports import free_port
from real_run import TIMEOUT_S, Launcher, Run

from everstep.model.events import WorkersStarted

PRELUDE = """
import hashlib, os, random, sys, time
from pathlib import Path
import torch

TRAIL, RANK = Path(os.environ["TRAIL"]), int(os.environ.get("RANK", 0))

KILLS = [int(step) for step in os.environ.get("KILLS", "").split()]

def tell(step, *words):
    number = int(str(step).split(":")[0])
    for kill, after in enumerate(KILLS):
        while number > after and not (TRAIL / f"killed-{kill}").exists():
            time.sleep(0.01)  # not past a kill that is still to come
    with (TRAIL / f"rank-{RANK}.steps").open("a") as file:
        file.write(f"{step} " + " ".join(map(str, words)) + chr(10))
    time.sleep(0.03)

def digest(parameters):
    data = b"".join(getattr(p, "_local_tensor", p).detach().cpu().numpy().tobytes() for p in parameters)
    return hashlib.sha256(data).hexdigest()

def end(parameters, *words):
    (TRAIL / f"rank-{RANK}.final").write_text(" ".join([digest(parameters), *map(str, words)]))
"""


@dataclass
class Trail:
    """What one run left."""

    folder: Path
    num_ranks: int

    def lines(self, rank: int) -> list[str]:
        path = self.folder / f"rank-{rank}.steps"
        return path.read_text().splitlines() if path.exists() else []

    def last_step(self) -> int:
        """Newest step of which every rank has written its line."""
        return min(
            max((int(line.split()[0].split(":")[0]) for line in self.lines(rank)), default=-1)
            for rank in range(self.num_ranks)
        )

    def steps(self, rank: int) -> dict[str, str]:
        """The line of each step; a step that was done twice must have said the same twice."""
        found: dict[str, str] = {}
        for line in self.lines(rank):
            key = line.split()[0]
            assert found.setdefault(key, line) == line, f"rank {rank}: {found[key]!r} at first, then {line!r}"
        return found

    def final(self, rank: int) -> str:
        return (self.folder / f"rank-{rank}.final").read_text()


def assert_kills_leave_no_trace(
    launcher: Launcher, text: str, kills: tuple[tuple[int, int], ...], num_ranks: int = 1, limit_s: float = 90.0
) -> Trail:
    """Run the program in peace, and with a SIGKILL of rank r after step s for each (s, r). Returns the second trail.

    In peace it runs without us, so that what we do to a library shows.
    """
    script = launcher.script(PRELUDE + text)
    peaceful, killed = Trail(launcher.folder / "peace", num_ranks), Trail(launcher.folder / "kills", num_ranks)
    if num_ranks == 1:
        run_alone(launcher, text, "peace")
    else:
        launcher.in_peace(script, num_ranks=num_ranks, env=environment(peaceful))
    _run(launcher, script, killed, kills, limit_s)
    for rank in range(num_ranks):
        expected, found = peaceful.steps(rank), killed.steps(rank)
        differing = [(line, found.get(step)) for step, line in expected.items() if found.get(step) != line]
        assert not differing, f"rank {rank}: in peace and with kills: {differing[:2]}"
        assert len(found) == len(expected)
        assert killed.final(rank) == peaceful.final(rank)
    return killed


def environment(trail: Trail) -> dict[str, str]:
    trail.folder.mkdir()
    return {
        "TRAIL": str(trail.folder),
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "OMP_NUM_THREADS": "1",
    }


def run_alone(launcher: Launcher, text: str, name: str) -> Trail:
    """The program with its library only, as the only rank. No test is about how long that takes."""
    script, trail = launcher.script(PRELUDE + text), Trail(launcher.folder / name, 1)
    port = str(free_port())
    ranks = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    env = {**os.environ, **ranks, **environment(trail)}
    command = [sys.executable, script]
    ended = subprocess.run(
        command, env=env, cwd=script.parent, capture_output=True, timeout=TIMEOUT_S, check=False, text=True
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return trail


def _run(launcher: Launcher, script: Path, trail: Trail, kills: tuple[tuple[int, int], ...], limit_s: float) -> None:
    num_ranks = trail.num_ranks
    env = {**environment(trail), "KILLS": " ".join(str(step) for step, _ in kills)}
    run = launcher.start("--nproc-per-node", num_ranks, script, run_dir=f"run-{trail.folder.name}", env=env)
    for number, (step, rank) in enumerate(kills):
        run.until(f"step {step}", lambda step=step: trail.last_step() >= step, limit_s)
        killed = _newest(run)
        os.kill(run.rank_pid(rank, killed), signal.SIGKILL)
        (trail.folder / f"killed-{number}").touch()
        run.until("the next generation", lambda killed=killed: _newest(run) > killed, limit_s)
    assert run.wait(limit_s) == 0, _words(run) + run.story()
    repeated = max(len(trail.lines(rank)) - len(trail.steps(rank)) for rank in range(num_ranks))
    assert repeated <= 4 * len(kills), f"{repeated} steps were done again for {len(kills)} kills"
    assert len(run.events(WorkersStarted)) >= len(kills) + 1, "nobody was killed"


def _newest(run: Run) -> int:
    return max(event.generation for event in run.events(WorkersStarted))


def _words(run: Run) -> str:
    """What the ranks printed: the reason is there, when a program fails."""
    files = sorted(run.run_dir.glob("logs/gen-*/rank-*/std*.log"))
    return "\n".join(f"--- {path.relative_to(run.run_dir)}\n{path.read_text()[-3000:]}" for path in files)
