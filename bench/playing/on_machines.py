"""Runs whose nodes are on hosts of a test bed: started by hand, one command on each, or given by a real Slurm."""

import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from everstep.testing.hosts import Bed, Host
from everstep.testing.slurm import URGENT, SlurmBed
from playing.player import EVERSTEP, OPTIONS, Player, agent_among, launcher_among, saving, with_inner
from playing.scenario import Scenario


class _OnMachines(Player):
    def __init__(self, scenario: Scenario, machines: Sequence[Host]) -> None:
        super().__init__(scenario)
        self._machines = machines

    def agent_of(self, node: str) -> int:
        found = agent_among(self._host_of(node).pids(), node)
        assert found is not None
        return found

    def rank_of(self, rank: int, node: str, pid: int) -> int:
        return with_inner(self._host_of(node).pids(), pid)

    def power_off(self, node: str) -> None:
        self._host_of(node).power_off()

    def _host_of(self, node: str) -> Host:
        for host in self._machines:
            if agent_among(host.pids(), node) is not None:
                return host
        raise SystemExit(f"{node} is on no host")


class OnHosts(_OnMachines):
    name = "hosts"

    def __init__(self, scenario: Scenario, folder: Path, program: Path, policy: Path) -> None:
        self._bed, self._err = Bed(), folder / "h0.err"
        self._processes: list[subprocess.Popen[bytes]] = []
        hosts = [self._bed.add(f"h{number}") for number in range(scenario.nodes + scenario.standby)]
        super().__init__(scenario, hosts)
        command = [*EVERSTEP, "run", "--nnodes", str(scenario.nodes), "--standby", str(scenario.standby)]
        command += ["--nproc-per-node", str(scenario.ranks_per_node)]
        command += ["--config", str(policy), *OPTIONS, *saving(scenario, folder)]
        command += ["--rdzv-endpoint", f"{hosts[0].address}:29400", str(program)]
        for host in hosts:
            with (folder / f"{host.name}.err").open("wb") as err:
                host.start(command, env={"EVERSTEP_JOIN_TOKEN": "the token of this benchmark"}, err=err)
        self.run_dir = hosts[0].folder / "home" / "runs" / "latest"

    def __enter__(self) -> "OnHosts":
        return self

    def __exit__(self, *_: object) -> None:
        self._bed.__exit__()

    def preempt(self) -> None:
        """Nobody gave the hosts but who started the commands; the first one is told."""
        os.kill(launcher_among(self._machines[0].pids()), signal.SIGTERM)

    def said(self) -> str:
        return self._err.read_text(errors="replace")

    def everstep(self, *words: object) -> None:
        self._machines[0].start([*EVERSTEP, *map(str, words)])


class OnSlurm(_OnMachines):
    name = "slurm"

    def __init__(self, scenario: Scenario, folder: Path, program: Path, policy: Path) -> None:
        self._bed = SlurmBed(scenario.nodes + scenario.standby)
        try:
            super().__init__(scenario, tuple(self._bed.nodes.values()))
            shared = self._bed.folder / "shared"
            for path in (program, policy):
                (shared / path.name).write_text(path.read_text())
            self._env = {"EVERSTEP_HOME": str(shared / "home")}
            command = [*EVERSTEP, "submit", "--nodes", scenario.nodes, "--standby", scenario.standby]
            command += ["--nproc-per-node", scenario.ranks_per_node]
            command += ["--config", shared / policy.name, *OPTIONS, *saving(scenario, shared), shared / program.name]
            job = self._bed.run(*command, env=self._env).split()[1]
            self.run_dir = shared / "home" / "runs" / f"slurm-{job}"
        except BaseException:
            self._bed.close()
            raise

    def __enter__(self) -> "OnSlurm":
        return self

    def __exit__(self, *_: object) -> None:
        self._bed.close()

    def preempt(self) -> None:
        """By a job of a partition that goes before; Slurm's notice is 30 s here."""
        self._bed.run("sbatch", "-p", URGENT, "-N", len(self._bed.nodes), "--wrap", "sleep 1")

    def said(self) -> str:
        out = self.run_dir.with_suffix(".out")
        return out.read_text(errors="replace") if out.exists() else "(nothing)"

    def drain(self, node: str) -> None:
        name = self._host_of(node).name
        self._bed.run("scontrol", "update", f"NodeName={name}", "State=DRAIN", "Reason=a fan is to be replaced")

    def everstep(self, *words: object) -> None:
        self._bed.start(*EVERSTEP, *words, env=self._env)
