"""A run in an allocation of a real Slurm, submitted on the login host: a node that is drained, the first one lost."""

import contextlib
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from everstep.engines.network import NetworkError
from everstep.journal.beside.succession import known
from everstep.journal.runs import find_run
from everstep.testing.slurm import SlurmBed, why_not

SLOTS = 'while [ ! -e "$1" ]; do echo "slot $EVERSTEP_SLOT on $(hostname)"; sleep 0.1; done\n'


def until(what: str, condition: Callable[[], bool]) -> None:
    ends_at = time.monotonic() + 90.0
    while not condition():
        assert time.monotonic() < ends_at, f"never came: {what}"
        time.sleep(0.05)


class Job:
    """Two nodes and a spare, submitted on the login host of a cluster of three."""

    def __init__(self, bed: SlurmBed) -> None:
        self._bed, self._shared = bed, bed.folder / "shared"
        self._env = {"EVERSTEP_HOME": str(self._shared / "home")}
        (self._shared / "slots.sh").write_text(SLOTS)
        (self._shared / "everstep.toml").write_text("[policy]\nexamine = false\n")
        self.run_dir = self._shared / "home" / "runs" / "slurm-1"
        config = ("--config", self._shared / "everstep.toml")
        program = ("--no-python", "sh", self._shared / "slots.sh", self._shared / "done")
        self.everstep("submit", "--nodes", "2", "--standby", "1", *config, *program)

    def everstep(self, *words: object) -> str:
        """On the login host."""
        try:
            return self._bed.run(sys.executable, "-P", "-m", "everstep.cli.main", *words, env=self._env)
        except subprocess.CalledProcessError as error:
            pytest.fail(error.output)

    def is_on(self, run_dir: Path, slot: int, nodes: str) -> bool:
        """In the newest generation; `nodes`: a pattern."""
        logs = sorted(run_dir.glob(f"logs/gen-*/rank-{slot}/stdout.log"), key=lambda each: int(each.parts[-3][4:]))
        return bool(logs) and re.search(f"slot {slot} on {nodes}$", logs[-1].read_text(), re.MULTILINE) is not None

    def lose_first(self, end: Callable[[], None]) -> Path:
        """By `end`, when both ranks step and another host could take over: the run's directory of that one."""
        self.until_both_ranks(self.run_dir)
        until("hosts that could take over", lambda: may_be_succeeded(self.run_dir))
        end()
        until("another controller", lambda: find_run(str(self.run_dir)).path != self.run_dir)
        return find_run(str(self.run_dir)).path

    def until_both_ranks(self, run_dir: Path, first: str = "n0") -> None:
        until("both ranks", lambda: self.is_on(run_dir, 0, first) and self.is_on(run_dir, 1, "n[12]"))

    def finish(self) -> None:
        (self._shared / "done").touch()
        until("the end", lambda: (self.run_dir / "exit-code").exists())

    @property
    def exit_code(self) -> str:
        return (self.run_dir / "exit-code").read_text().strip()

    def has_ended(self) -> bool:
        return not self._bed.run("squeue", "-h", "-o", "%i").strip()


@pytest.fixture
def bed() -> Iterator[SlurmBed]:
    try:
        made = SlurmBed(3)
    except NetworkError as error:
        pytest.skip(str(error))
    with made:
        yield made


def may_be_succeeded(run_dir: Path) -> bool:
    found = known(run_dir)
    return found is not None and found.may_be_succeeded


@pytest.mark.root
@pytest.mark.skipif(bool(why_not()), reason=f"no Slurm: {why_not()}")
def test_the_job_goes_on_without_its_first_node(bed: SlurmBed):
    """Which has the controller, and the batch script."""
    job = Job(bed)
    led = job.lose_first(bed.nodes["n0"].power_off)
    job.until_both_ranks(led, first="n[12]")
    until("our reason", lambda: bed.state_of("n0").startswith("down"))
    assert "it had the controller, and was not heard of" in bed.reason_of("n0")
    assert re.search(r"controller on n[12] \(.*\), epoch 2", job.everstep("status", "slurm-1"))
    job.everstep("stop", "slurm-1")
    until("the end of the job", job.has_ended)
    assert job.exit_code == "143"


@pytest.mark.root
@pytest.mark.skipif(bool(why_not()), reason=f"no Slurm: {why_not()}")
def test_a_first_node_that_wakes_after_it_was_replaced_ends_nothing(bed: SlurmBed):
    """Neither its controller does, nor Slurm by the end of its batch script."""
    job = Job(bed)
    led = job.lose_first(bed.nodes["n0"].freeze)
    until("our reason", lambda: "it had the controller" in bed.reason_of("n0"))
    bed.nodes["n0"].thaw()
    until("its launcher's end", lambda: not any(b"everstep.cli.main" in words(pid) for pid in launchers(bed)))
    job.until_both_ranks(led, first="n[12]")
    assert not job.has_ended()
    assert not (job.run_dir / "exit-code").exists()
    assert bed.state_of("n0").startswith("drain")
    job.finish()
    until("the end of the job", job.has_ended)
    assert job.exit_code == "0"
    assert "JobState=COMPLETED" in bed.run("scontrol", "show", "job", "-o", "1")


def words(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def launchers(bed: SlurmBed) -> list[int]:
    """On the first node; srun has the same words."""
    return [pid for pid in bed.nodes["n0"].pids() if not words(pid).startswith(b"srun")]


@pytest.mark.root
@pytest.mark.skipif(bool(why_not()), reason=f"no Slurm: {why_not()}")
def test_a_drained_node_is_left_for_the_spare_of_the_allocation(bed: SlurmBed):
    job = Job(bed)
    job.until_both_ranks(job.run_dir)
    lost, spare = ("n1", "n2") if job.is_on(job.run_dir, 1, "n1") else ("n2", "n1")
    bed.run("scontrol", "update", f"NodeName={lost}", "State=DRAIN", "Reason=a fan is to be replaced")
    until("the spare", lambda: job.is_on(job.run_dir, 1, spare))
    job.finish()
    said = job.run_dir.with_suffix(".out").read_text()
    assert job.exit_code == "0", said
    assert "a fan is to be replaced" in said
    assert bed.reason_of(lost) == "a fan is to be replaced"
