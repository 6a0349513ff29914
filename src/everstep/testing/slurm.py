"""A real Slurm cluster for tests: munge, slurmctld on a host of its own, and one slurmd on each node's host.

    with SlurmBed(4) as bed:
        bed.run("srun", "-N4", "hostname")
        bed.nodes["n1"].power_off()

Every node is a `Host` (network, process, name and mount namespaces), so it can be powered off, frozen and cut off.
Commands run on the login host, which is slurmctld's. Needs root and Debian's slurmctld, slurmd, slurm-client and munge;
`why_not` says what is missing. Nothing of it outlives the `with`.
"""

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO

from everstep.engines.network import NetworkError
from everstep.testing.hosts import Bed
from everstep.testing.munge import SOCKET_NAME, Munged

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "sinfo", "squeue")
LOGIN = "ctl"
PARTITION, URGENT = "train", "urgent"
"""Jobs of the second one preempt those of the first, which get their notice for `GraceTime`."""

UP_S = 60.0
_PORT_CTLD, _PORT_SLURMD = 6817, 6818


class SlurmBedError(Exception):
    """The cluster did not come up; the message ends with what its daemons said."""


def why_not() -> str:
    """Why no cluster can be had here; "" where it can."""
    if os.geteuid() != 0:
        return "needs root"
    path = f"{os.environ.get('PATH', '')}:/usr/sbin"
    missing = [name for name in PROGRAMS if shutil.which(name, path=path) is None]
    if missing:
        return f"not installed: {', '.join(missing)} (Debian: slurmctld slurmd slurm-client munge)"
    return ""


class SlurmBed:
    """Up when the constructor returns; raises SlurmBedError, NetworkError."""

    def __init__(self, num_nodes: int, *, slurmd_timeout_s: int = 300, grace_s: int = 30, extra: str = "") -> None:
        """`slurmd_timeout_s`: after which slurmctld notices by itself that a node is gone; 300 is Slurm's default, so
        whatever is faster is ours. `grace_s`: from the notice of a preemption to its force. `extra`: further lines
        of slurm.conf."""
        self.folder = Path(tempfile.mkdtemp(prefix="everstep-slurm-"))
        for name in ("etc", "log", "state", "spool", "munge", "shared"):
            (self.folder / name).mkdir()
        self.folder.chmod(0o711)
        (self.folder / "munge").chmod(0o711)
        self._munged: Munged | None = None
        self._controller: subprocess.Popen[bytes] | None = None
        try:
            self._bed = Bed()
        except NetworkError:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise
        try:
            self.login = self._bed.add(LOGIN)
            self.nodes = {f"n{number}": self._bed.add(f"n{number}") for number in range(num_nodes)}
            self._configure(slurmd_timeout_s, grace_s, extra)
            self._munged = Munged(self.folder / "munge")
            self.start_controller()
            for name in self.nodes:
                self.boot(name)
            self._await_idle(num_nodes)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "SlurmBed":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def environ(self) -> dict[str, str]:
        """The environment of commands on the login host. The home directory is shared by all hosts, as on most
        clusters."""
        return {"SLURM_CONF": str(self._conf), "PATH": f"{os.environ.get('PATH', '')}:/usr/sbin"}

    def run(self, *command: object, limit_s: float = 60.0, env: Mapping[str, str] | None = None) -> str:
        """Its output; raises CalledProcessError, with what it wrote on stderr as well."""
        out = tempfile.TemporaryFile()  # noqa: SIM115 - closed below
        with out:
            process = self.start(*command, out=out, err=out, env=env)
            code = process.wait(limit_s)
            out.seek(0)
            text = out.read().decode(errors="replace")
        if code:
            raise subprocess.CalledProcessError(code, [str(each) for each in command], output=text, stderr=text)
        return text

    def start(
        self,
        *command: object,
        out: IO[bytes] | None = None,
        err: IO[bytes] | None = None,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> "subprocess.Popen[bytes]":
        """A command on the login host."""
        words = [str(each) for each in command]
        return self.login.start(words, env={**self.environ, **(env or {})}, out=out, err=err, cwd=cwd)

    def boot(self, name: str) -> None:
        """slurmd on a node; also after it was healed."""
        with (self.folder / "log" / f"slurmd-{name}.out").open("ab") as log:
            self.nodes[name].start(["slurmd", "-D", "-f", str(self._conf)], env=self.environ, out=log, err=log)

    def state_of(self, node: str) -> str:
        """Return the node's state as `sinfo` shows it: "idle", "drained*", ..."""
        return self.run("sinfo", "-h", "-N", "-p", PARTITION, "-n", node, "-o", "%T").strip()

    def reason_of(self, node: str) -> str:
        return self.run("sinfo", "-h", "-N", "-p", PARTITION, "-n", node, "-o", "%E").strip()

    def start_controller(self) -> None:
        with (self.folder / "log" / "slurmctld.out").open("ab") as log:
            command = ["slurmctld", "-D", "-f", str(self._conf)]
            self._controller = self.login.start(command, env=self.environ, out=log, err=log)

    def stop_controller(self) -> None:
        """Stop slurmctld; it answers no request until it is started again. Its jobs go on."""
        assert self._controller is not None
        self._controller.kill()
        self._controller.wait()

    def close(self) -> None:
        self._bed.__exit__()
        if self._munged is not None:
            self._munged.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def _conf(self) -> Path:
        return self.folder / "etc" / "slurm.conf"

    @property
    def _munge_socket(self) -> Path:
        return self.folder / "munge" / SOCKET_NAME

    def _await_idle(self, number: int) -> None:
        def is_idle() -> bool:
            try:
                idle = self.run("sinfo", "-h", "-N", "-p", PARTITION, "-t", "idle", "-o", "%N", limit_s=20)
                return len(idle.split()) == number
            except subprocess.CalledProcessError:  # slurmctld does not listen yet
                return False

        self._until(f"{number} idle nodes", is_idle)

    def _until(self, what: str, condition: Callable[[], bool]) -> None:
        ends_at = time.monotonic() + UP_S
        while not condition():
            if time.monotonic() > ends_at:
                said = [path.read_text(errors="replace")[-1500:] for path in sorted((self.folder / "log").iterdir())]
                raise SlurmBedError("\n".join([f"never came: {what}", *said]))
            time.sleep(0.05)

    def _configure(self, slurmd_timeout_s: int, grace_s: int, extra: str) -> None:
        (self.folder / "etc" / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        nodes = "\n".join(
            f"NodeName={name} NodeAddr={host.address} CPUs=4 RealMemory=4000" for name, host in self.nodes.items()
        )
        settings = {
            "ClusterName": "everstep",
            "SlurmctldHost": f"{LOGIN}({self.login.address})",
            "SlurmctldPort": f"{_PORT_CTLD}",
            "SlurmdPort": f"{_PORT_SLURMD}",
            "AuthType": "auth/munge",
            "AuthInfo": f"socket={self._munge_socket},cred_expire=5",
            "CredType": "cred/munge",
            "SlurmUser": "root",
            "SlurmdUser": "root",
            "StateSaveLocation": f"{self.folder / 'state'}",
            "SlurmdSpoolDir": f"{self.folder / 'spool'}/%n",
            "SlurmctldPidFile": f"{self.folder / 'state' / 'slurmctld.pid'}",
            "SlurmdPidFile": f"{self.folder / 'spool'}/%n.pid",
            "SlurmctldLogFile": f"{self.folder / 'log' / 'slurmctld.log'}",
            "SlurmdLogFile": f"{self.folder / 'log'}/slurmd-%n.log",
            "SlurmdParameters": "config_overrides",
            "ProctrackType": "proctrack/linuxproc",
            "TaskPlugin": "task/none",
            "MpiDefault": "none",
            "ReturnToService": "2",
            "SelectType": "select/cons_tres",
            "SelectTypeParameters": "CR_Core_Memory",
            "SchedulerParameters": "sched_interval=1,bf_interval=1,batch_sched_delay=0",
            "KillWait": "5",
            "UnkillableStepTimeout": "5",
            "SlurmdTimeout": f"{slurmd_timeout_s}",
            "SlurmctldTimeout": "10",
            "MessageTimeout": "5",
            "TCPTimeout": "2",
            "BatchStartTimeout": "10",
            "JobAcctGatherType": "jobacct_gather/none",
            "AccountingStorageType": "accounting_storage/none",
            "PreemptType": "preempt/partition_prio",
            "PreemptMode": "REQUEUE",
        }
        partitions = [
            f"PartitionName={PARTITION} Nodes=ALL Default=YES State=UP PriorityTier=1 PreemptMode=CANCEL",
            f"PartitionName={URGENT} Nodes=ALL State=UP PriorityTier=10 PreemptMode=OFF",
        ]
        partitions[0] += f" GraceTime={grace_s}"
        lines = [*(f"{name}={value}" for name, value in settings.items()), extra, nodes, *partitions]
        self._conf.write_text("\n".join(lines) + "\n")
