"""Nodes as processes of this machine, each with a network of its own."""

import os
import subprocess
from pathlib import Path

from playing.player import EVERSTEP, OPTIONS, Player, saving
from playing.scenario import Scenario

AWAY_S = 600.0


class OnLocal(Player):
    name = "local"

    def __init__(self, scenario: Scenario, folder: Path, program: Path, policy: Path) -> None:
        super().__init__(scenario)
        self.run_dir, self._err = folder / "run", folder / "err"
        self._env = {**os.environ, "EVERSTEP_HOME": str(folder / "home")}
        shape = ["--local-nodes", str(scenario.nodes), "--standby", str(scenario.standby), "--network", "namespaces"]
        shape += ["--nproc-per-node", str(scenario.ranks_per_node)]
        command = [*EVERSTEP, "run", "--run-dir", str(self.run_dir), *shape, "--config", str(policy), *OPTIONS]
        command += saving(scenario, folder)
        with self._err.open("wb") as err:
            self._run = subprocess.Popen(
                [*command, str(program)], env=self._env, stdout=subprocess.DEVNULL, stderr=err, start_new_session=True
            )

    def __enter__(self) -> "OnLocal":
        return self

    def __exit__(self, *_: object) -> None:
        self._run.terminate()
        try:
            self._run.wait(60)
        except subprocess.TimeoutExpired:
            self._run.kill()

    def said(self) -> str:
        return self._err.read_text(errors="replace")

    def everstep(self, *words: object) -> None:
        command = [*EVERSTEP, *map(str, words)]
        subprocess.Popen(command, env=self._env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def agent_of(self, node: str) -> int:
        return self.pid_of_agent(node)

    def rank_of(self, rank: int, node: str, pid: int) -> int:
        return pid

    def preempt(self) -> None:
        self._run.terminate()

    def power_off(self, node: str) -> None:
        """Its link is down, and stays down: what runs there is not heard any more, and is not ended by us."""
        self.everstep("drill", "cut-node", node, "--seconds", AWAY_S, "--run", self.run_dir)
