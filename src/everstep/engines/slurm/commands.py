"""Slurm's commands, each with a limit of time. An error is never an answer: who cannot ask does not know.

Text formats are used, not `--json`: they are the same in all versions, and 22.05's scontrol has no other.
"""

import asyncio
import os
import re
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from everstep.engines.children import Child, Children, wait_ended
from everstep.errors import EverstepError
from everstep.fabric.readers.hostlist import expand
from everstep.fabric.topology.values import FabricError
from everstep.linux.children import Ended

LIMIT_S = 10.0
"""A slurmctld that does not answer lets its commands wait for minutes."""

KILLED_S = 2.0
_REASON_CHARS = 200


class SlurmError(EverstepError):
    """A command failed; the message is Slurm's own."""

    exit_code = 3

    @property
    def is_denied(self) -> bool:
        """Only operators of the cluster may change nodes."""
        return bool(re.search(r"permission denied|not permitted|Invalid user id", str(self), re.IGNORECASE))

    @property
    def is_of_no_job(self) -> bool:
        """Slurm has answered: it knows no such job, or no more."""
        return "Invalid job id" in str(self)


class NodeState(msgspec.Struct, frozen=True):
    node: str
    state: str  # "allocated", "draining", "down*", ...
    reason: str

    @property
    def is_draining(self) -> bool:
        return self.state.startswith("drain")

    @property
    def is_usable(self) -> bool:
        return self.state.startswith(("idle", "alloc", "mix", "comp"))


class Slurm:
    """Called by a launcher, which waits for all of its children itself. Every method raises SlurmError."""

    def __init__(self, children: Children, folder: Path) -> None:
        """`folder`: for what the commands say; the newest of each stays there."""
        self._children, self._folder = children, folder

    async def node_states(self, nodes: Sequence[str]) -> dict[str, NodeState]:
        if not nodes:
            return {}
        return parse_states(await self._call("sinfo", "-h", "-N", "-n", ",".join(nodes), "-o", "%N|%T|%E"))

    async def set_node(self, node: str, state: str, reason: str) -> None:
        """`state`: "drain" or "down"."""
        text = "".join(each if each.isprintable() else " " for each in reason)[:_REASON_CHARS]
        await self._call("scontrol", "update", f"NodeName={node}", f"State={state}", f"Reason={text}")

    async def job_fields(self, job: str) -> dict[str, str]:
        """The fields of `scontrol show job`: "Partition", "Account", "JobState", ..."""
        fields = parse_fields(await self._call("scontrol", "show", "job", "-o", job))
        if "JobState" not in fields:
            raise SlurmError(f"scontrol: no state of job {job} in what it said")
        return fields

    async def submit(self, script: Path, options: Sequence[str]) -> str:
        """The job's id."""
        return parse_job(await self._call("sbatch", "--parsable", *options, str(script)))

    async def cancel(self, job: str) -> None:
        await self._call("scancel", job)

    async def _call(self, *command: str) -> str:
        over: asyncio.Future[Ended] = asyncio.get_running_loop().create_future()

        def on_end(_: Child, ended: Ended) -> None:
            if not over.done():
                over.set_result(ended)

        log = self._folder / f"{command[0]}.out"
        try:
            self._folder.mkdir(exist_ok=True)
            log.write_bytes(b"")
            child = self._children.spawn(command[0], command, on_end=on_end, log=log)
        except OSError as error:
            raise SlurmError(f"{command[0]} cannot be started: {error.strerror}") from error
        try:
            async with asyncio.timeout(LIMIT_S):
                ended = await over
        except TimeoutError:
            raise SlurmError(f"{command[0]} has not answered within {LIMIT_S:g} s") from None
        finally:
            if child.ended is None:
                child.send(signal.SIGKILL)
                await wait_ended([child], KILLED_S)
        said = log.read_text(errors="replace")
        if ended.code != 0:
            raise SlurmError(f"{command[0]}: {' '.join(said.split()) or ended}")
        return said


def parse_states(text: str) -> dict[str, NodeState]:
    """A node is listed once per partition."""
    rows = (line.split("|", 2) for line in text.splitlines() if line.count("|") >= 2)
    return {row[0].strip(): NodeState(row[0].strip(), row[1].strip().lower(), row[2].strip()) for row in rows}


def parse_fields(text: str) -> dict[str, str]:
    return dict(re.findall(r"(\w+)=(\S+)", text))


def is_of(job: Mapping[str, str], node: str) -> bool:
    """Whether this node is given to this job, and the job to this user."""
    user = re.search(r"\((\d+)\)$", job.get("UserId", ""))
    try:
        nodes = expand(job.get("NodeList", ""), "scontrol")
    except FabricError as error:
        raise SlurmError(str(error)) from error
    return user is not None and int(user[1]) == os.geteuid() and node in nodes


def parse_job(text: str) -> str:
    """The job id from `sbatch --parsable`, perhaps followed by the cluster's name. Raises SlurmError."""
    found = re.search(r"^(\d+)(;\S+)?$", text, re.MULTILINE)
    if found is None:
        raise SlurmError(f"sbatch: no job in what it said: {' '.join(text.split())[:200]}")
    return found[1]
