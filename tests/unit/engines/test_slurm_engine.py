"""What Slurm is told and asked: with commands of the test's own on PATH, so that each answer can be had."""

import asyncio
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from everstep.engines.children import Children
from everstep.engines.hosts.host import Host
from everstep.engines.slurm import batch, engine, orphaned
from everstep.engines.slurm.commands import Slurm, SlurmError, parse_fields, parse_job, parse_states
from everstep.wire.joining import Join, JoinToken


def host(name: str, node: str) -> Host:
    join = Join(
        session=name, host=name, address="10.0.0.1", everstep_version="0", torch_version="2", scheduler_node=name
    )
    made = Host(join, 1)
    made.node, made.line, made.heard_at = node, object(), time.monotonic() + 60.0  # type: ignore[assignment]
    made.nodes.add(node)
    return made


class FakeHosts:
    """What SlurmEngine needs of the engine that it wraps."""

    def __init__(self) -> None:
        self.was_complete, self.local_nodes = True, ("n0",)
        self.hosts = (host("gpu1", "n1"), host("gpu2", "n2"))
        self.wanted: set[str] = set()
        self.evicted: list[str] = []

    def watch(self, on_loss: object) -> None: ...

    def acquire(self, request: str, *, is_urgent: bool = True) -> None:
        self.wanted.add(request)

    def waiting(self) -> frozenset[str]:
        return frozenset(self.wanted)

    def evict(
        self, node: str, why: str = "", *, is_silent: bool = False, is_drill: bool = False, may_spare: bool = False
    ) -> str:
        self.evicted.append(node)
        return ""

    async def end(self, grace_s: float, *, spares: bool = False) -> None: ...


class Cluster:
    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.hosts = folder, FakeHosts()
        self.may_act = True
        self.said: list[str] = []
        self.drained: list[tuple[str, str | None]] = []
        self.answer("sinfo", "echo 'gpu1|allocated|none'; echo 'gpu2|allocated|none'")
        for name in ("scontrol", "sbatch", "scancel"):
            self.answer(name, "echo JobState=RUNNING Partition=gpu")
        self.answer("sbatch", "echo 77")
        monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
        monkeypatch.setattr(engine, "LOOK_S", 0.02)
        monkeypatch.setattr(engine, "STATES_S", 0.02)
        monkeypatch.setattr(engine, "PILOT_AFTER_S", 0.02)

    def answer(self, name: str, script: str) -> None:
        draft = self.folder / f"{name}.new"
        draft.write_text(f'#!/bin/sh\necho "{name} $*" >> {self.folder}/asked\n{script}\n')
        draft.chmod(0o755)
        draft.rename(self.folder / name)

    @property
    def asked(self) -> str:
        path = self.folder / "asked"
        return path.read_text() if path.exists() else ""

    def run(
        self,
        story: "Callable[[engine.SlurmEngine], object]",
        *,
        survives: bool = True,
        predecessor: "engine.Predecessor | None" = None,
    ) -> None:
        async def live() -> None:
            children = Children()
            children.start_reaping(asyncio.get_running_loop())
            made = engine.SlurmEngine(
                self.hosts,  # type: ignore[arg-type]
                run="r1",
                job="5",
                node="gpu0",
                nodes=("gpu0", "gpu1", "gpu2"),
                survives_nodes=survives,
                run_dir=self.folder,
                join=("everstep", "agent", "--join", "gpu0:1"),
                token=JoinToken("a token of this test"),
                slurm=Slurm(children, self.folder / "slurm"),
                drained=lambda node, reason: self.drained.append((node, reason)),
                say=self.said.append,
                may_act=lambda: self.may_act,
                predecessor=predecessor,
            )
            made.watch(lambda loss: None)
            try:
                await story(made)  # type: ignore[misc]
            finally:
                await made.end(0.0)

        asyncio.run(live())

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(60.0):
            while not condition():
                await asyncio.sleep(0.01)


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    return Cluster(tmp_path, monkeypatch)


def test_a_broken_node_is_drained_and_a_silent_one_set_down(cluster: Cluster):
    cluster.hosts.hosts[1].heard_at = 0.0

    async def story(made: engine.SlurmEngine) -> None:
        made.evict("n1", "GPU 3 fell off the bus")
        made.evict("n2", "nothing was heard of it", is_silent=True)
        await cluster.until(lambda: cluster.asked.count("scontrol update") == 2)

    cluster.run(story)
    assert "NodeName=gpu1 State=drain Reason=everstep r1: GPU 3 fell off the bus" in cluster.asked
    assert "NodeName=gpu2 State=down Reason=everstep r1: nothing was heard of it" in cluster.asked


def test_a_silent_agent_on_a_host_that_answers_is_no_fault_of_the_machine(cluster: Cluster):
    async def story(made: engine.SlurmEngine) -> None:
        made.evict("n1", "nothing was heard of it", is_silent=True)
        await cluster.until(lambda: cluster.asked.count("sinfo") > 1)

    cluster.run(story)
    assert cluster.hosts.evicted == ["n1"]
    assert "scontrol update" not in cluster.asked


def test_a_job_that_would_end_with_a_node_is_not_set_down(cluster: Cluster):
    cluster.hosts.hosts[1].heard_at = 0.0

    async def story(made: engine.SlurmEngine) -> None:
        made.evict("n2", "power", is_silent=True)
        await cluster.until(lambda: "scontrol update" in cluster.asked)

    cluster.run(story, survives=False)
    assert "NodeName=gpu2 State=drain" in cluster.asked


def test_a_drain_by_an_administrator_is_told_once_and_his_words_stay(cluster: Cluster):
    cluster.answer(
        "sinfo", "echo 'gpu1|draining|a fan'; echo 'gpu2|drained|everstep r0: before'; echo 'gpu1|draining|a fan'"
    )

    async def story(made: engine.SlurmEngine) -> None:
        await cluster.until(lambda: bool(cluster.drained))
        made.evict("n1", "drained")
        await cluster.until(lambda: cluster.asked.count("sinfo") > 3)

    cluster.run(story)
    assert cluster.drained == [("n1", "a fan")]
    assert "scontrol update" not in cluster.asked


def test_a_drain_that_is_taken_back_is_told_and_a_node_that_is_only_down_is_not_well(cluster: Cluster):
    cluster.answer("sinfo", "echo 'gpu1|draining|a fan'; echo 'gpu2|draining|a disk'")

    async def story(made: engine.SlurmEngine) -> None:
        await cluster.until(lambda: len(cluster.drained) == 2)
        cluster.answer("sinfo", "echo 'gpu1|mixed|none'; echo 'gpu2|down*|a disk'")
        await cluster.until(lambda: len(cluster.drained) == 3)
        await cluster.until(lambda: cluster.asked.count("sinfo") > 6)

    cluster.run(story)
    assert cluster.drained[2:] == [("n1", None)]


def test_a_drill_drains_no_node_in_slurm(cluster: Cluster):
    async def story(made: engine.SlurmEngine) -> None:
        made.evict("n1", "a drill", is_drill=True)
        await cluster.until(lambda: cluster.asked.count("sinfo") > 2)

    cluster.run(story)
    assert cluster.hosts.evicted == ["n1"]
    assert "scontrol update" not in cluster.asked


def test_nothing_follows_from_an_error_and_what_was_to_be_told_is_told_later(cluster: Cluster):
    cluster.answer("sinfo", "echo 'gpu1|draining|half an ans'; exit 1")
    cluster.answer("scontrol", "echo 'Unable to contact slurm controller' >&2; exit 1")

    async def story(made: engine.SlurmEngine) -> None:
        made.evict("n2", "broken")
        await cluster.until(lambda: cluster.asked.count("scontrol") > 2)
        assert cluster.drained == []
        cluster.answer("scontrol", "true")
        await cluster.until(lambda: any("set to drain" in line for line in cluster.said))

    cluster.run(story)
    assert sum("trying again" in line for line in cluster.said) == 1


def test_a_user_who_may_not_is_told_so_once(cluster: Cluster):
    cluster.answer("scontrol", "echo 'slurm_update error: Invalid user id' >&2; exit 1")

    async def story(made: engine.SlurmEngine) -> None:
        made.evict("n2", "broken")
        await cluster.until(lambda: cluster.asked.count("sinfo") > 3)

    cluster.run(story)
    assert cluster.asked.count("scontrol update") == 1
    assert any("this user may not set gpu2" in line for line in cluster.said)


def test_without_a_spare_a_job_of_one_node_is_asked_for_and_one_only(cluster: Cluster):
    cluster.answer("scontrol", "echo JobState=PENDING Reason=Resources Partition=gpu Account=lab")

    async def story(made: engine.SlurmEngine) -> None:
        made.acquire("r1", is_urgent=False)
        await cluster.until(lambda: cluster.asked.count("sinfo") > 3)
        assert "sbatch" not in cluster.asked
        made.acquire("r2")
        await cluster.until(lambda: any("waits: Resources" in line for line in cluster.said))
        looks = cluster.asked.count("sinfo")
        await cluster.until(lambda: cluster.asked.count("sinfo") > looks + 3)
        modes.append((cluster.folder / "pilot-token").stat().st_mode & 0o777)
        assert "a token" not in (cluster.folder / "pilot.sh").read_text()

    modes: list[int] = []
    cluster.run(story)
    assert cluster.asked.count("sbatch") == 1
    assert "--partition=gpu --account=lab" in cluster.asked
    assert "scancel 77" in cluster.asked
    assert modes == [0o600]
    assert not list(cluster.folder.glob("pilot*")), "the token may be the user's own, and serve other runs"


def foreign(name: str, node: str, job: str = "") -> Host:
    """A host that says that it is this node of Slurm's."""
    made = host(node, node)
    made.join = msgspec.structs.replace(made.join, session=node, scheduler_node=name, scheduler_job=job)
    return made


UID = os.geteuid()


@pytest.mark.parametrize(
    ("says", "is_told"),
    [
        (f"echo JobState=RUNNING 'UserId=me({UID})' 'NodeList=gpu[7-9]'", True),
        (f"echo JobState=RUNNING 'UserId=her({UID + 1})' 'NodeList=gpu[7-9]'", False),
        (f"echo JobState=RUNNING 'UserId=me({UID})' 'NodeList=gpu[1-2]'", False),
        (f"echo JobState=RUNNING 'UserId=me({UID})' 'NodeList=(null)'", False),
        ("echo JobState=RUNNING", False),
    ],
)
def test_of_a_node_that_is_none_of_this_runs_jobs_slurm_is_told_nothing(cluster: Cluster, says: str, is_told: bool):
    cluster.answer("scontrol", f'case "$*" in *show*) {says};; esac')
    cluster.hosts.hosts += (foreign("gpu8", "n8", "41"),)

    async def story(made: engine.SlurmEngine) -> None:
        made.evict("n8", "broken")
        await cluster.until(lambda: any("gpu8" in line for line in cluster.said))

    cluster.run(story)
    assert ("NodeName=gpu8" in cluster.asked) is is_told
    assert any("not a node of this run's jobs" in line for line in cluster.said) is not is_told


def test_while_slurm_does_not_say_whose_a_node_is_it_is_told_nothing_of_it(cluster: Cluster):
    cluster.answer("scontrol", "echo NodeList=gpu8")  # no state: half an answer, or of another version
    cluster.hosts.hosts += (foreign("gpu8", "n8", "41"),)

    async def story(made: engine.SlurmEngine) -> None:
        made.evict("n8", "broken")
        await cluster.until(lambda: cluster.asked.count("scontrol show") > 2)

    cluster.run(story)
    assert "scontrol update" not in cluster.asked


@pytest.mark.parametrize("name", ["gpu0", "gpu1"])
def test_a_host_in_the_name_of_another_ones_node_takes_nothing_away_from_it(cluster: Cluster, name: str):
    cluster.hosts.hosts += (foreign(name, "n8", "5"),)
    cluster.answer("sinfo", f"echo '{name}|draining|a fan'")

    async def story(made: engine.SlurmEngine) -> None:
        made.evict("n8", "broken")
        await cluster.until(lambda: cluster.asked.count("sinfo") > 2)

    cluster.run(story)
    assert "scontrol update" not in cluster.asked
    assert ("n8", "a fan") not in cluster.drained


def test_a_job_that_slurm_has_forgotten_keeps_nobody_from_another_one(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(engine, "PILOT_AGAIN_S", 0.02)
    is_pilot = 'case "$*" in *77*) echo "slurm_load_jobs error: Invalid job id specified" >&2; exit 1;; esac'
    cluster.answer("scontrol", f"{is_pilot}; echo JobState=RUNNING")

    async def story(made: engine.SlurmEngine) -> None:
        made.acquire("r1")
        await cluster.until(lambda: cluster.asked.count("sbatch") > 1)

    cluster.run(story)


def test_a_slurm_that_never_answers_does_not_hold_up_the_end(cluster: Cluster, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(engine, "END_S", 0.2)

    async def story(made: engine.SlurmEngine) -> None:
        made.acquire("r1")
        await cluster.until(lambda: "sbatch" in cluster.asked)
        await cluster.until(lambda: any("one node more" in line for line in cluster.said))
        made._marks["gpu1"] = engine._Mark("drain", "everstep r1: broken", "")
        for name in ("scontrol", "scancel", "sinfo"):
            cluster.answer(name, "exec sleep 1000")
        began = time.monotonic()
        await made.end(0.0)
        assert time.monotonic() - began < 20.0
        cluster.answer("scontrol", "true")
        cluster.answer("scancel", "true")

    cluster.run(story)
    assert "to be ended by hand: scancel 77" in cluster.said[-2]
    assert "not reported: gpu1 is out" in cluster.said[-2]


def test_who_was_replaced_tells_slurm_nothing_and_ends_no_job_of_its_successors(cluster: Cluster):
    """It stood still, and has not heard yet that another host has the controller."""

    async def story(made: engine.SlurmEngine) -> None:
        made.acquire("r1")
        await cluster.until(lambda: any("one node more" in line for line in cluster.said))
        cluster.may_act = False
        await asyncio.sleep(0.2)  # what it was at is done
        (cluster.folder / "asked").unlink()
        made.evict("n1", "broken")
        made.acquire("r2")
        await asyncio.sleep(0.3)

    cluster.run(story)
    assert cluster.asked == ""


@pytest.fixture
def doors() -> Iterator[dict[str, tuple[str, int]]]:
    """Of a machine whose processes stand still, of one without a launcher, and of one that is off."""
    full = socket.create_server(("127.0.0.1", 0), backlog=0)
    frozen = socket.create_server(("127.0.0.1", 0))
    nobody = socket.create_server(("127.0.0.1", 0))
    place = nobody.getsockname()[:2]
    nobody.close()
    waiting = []
    for _ in range(4):  # nothing more gets in: the kernel does not answer
        each = socket.socket()
        each.setblocking(False)
        each.connect_ex(full.getsockname())
        waiting.append(each)
    yield {"accepts": frozen.getsockname()[:2], "refuses": place, "silent": full.getsockname()[:2]}
    for each in (full, frozen, *waiting):
        each.close()


@pytest.mark.parametrize(("how", "state"), [("silent", "down"), ("accepts", "drain"), ("refuses", "")])
def test_of_the_host_that_had_the_controller_slurm_is_told_what_its_kernel_says(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, doors: dict[str, tuple[str, int]], how: str, state: str
):
    """Its batch script is ended by Slurm, and the job with it, when a node that was set down comes back."""
    monkeypatch.setattr(engine, "ANSWER_S", 0.3)

    async def story(made: engine.SlurmEngine) -> None:
        await cluster.until(lambda: any("gpu1" in line for line in cluster.said))

    cluster.run(story, predecessor=engine.Predecessor("gpu1", "5", doors[how]))
    assert ("State=" in cluster.asked) is bool(state)
    if state:
        why = "it had the controller, and was not heard of; gpu0 continues"
        assert f"NodeName=gpu1 State={state} Reason=everstep r1: {why}" in cluster.asked


def test_the_lost_first_node_is_told_of_also_when_the_run_is_over_at_once(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, doors: dict[str, tuple[str, int]]
):
    monkeypatch.setattr(engine, "ANSWER_S", 0.3)

    async def story(made: engine.SlurmEngine) -> None:
        await asyncio.sleep(0)

    cluster.run(story, predecessor=engine.Predecessor("gpu1", "5", doors["silent"]))
    assert "NodeName=gpu1 State=down" in cluster.asked


def test_a_job_that_would_end_with_the_first_node_is_not_set_down(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, doors: dict[str, tuple[str, int]]
):
    monkeypatch.setattr(engine, "ANSWER_S", 0.3)

    async def story(made: engine.SlurmEngine) -> None:
        await cluster.until(lambda: any("gpu1" in line for line in cluster.said))

    cluster.run(story, survives=False, predecessor=engine.Predecessor("gpu1", "5", doors["silent"]))
    assert "State=drain" in cluster.asked


def job(batch_host: str, nodes: str, flag: int = 1) -> str:
    return f"echo JobState=RUNNING BatchFlag={flag} BatchHost={batch_host} 'NodeList={nodes}'"


@pytest.mark.parametrize(
    ("says", "srun", "is_ended"),
    [
        (job("gpu0", "gpu[1-2]"), "accepts", True),  # Slurm took the node out of the job
        (job("gpu0", "gpu[0-2]"), "silent", True),  # this user may set no node down
        (job("gpu0", "gpu[0-2]"), "accepts", False),
        (job("gpu0", "gpu[0-2]"), "refuses", False),
        (job("gpu0", "gpu[0-2]"), "", False),
        (job("", "gpu[0-2]", 0), "silent", False),  # salloc
    ],
)
def test_a_job_ends_with_its_run_where_its_script_is_lost(
    cluster: Cluster,
    monkeypatch: pytest.MonkeyPatch,
    doors: dict[str, tuple[str, int]],
    says: str,
    srun: str,
    is_ended: bool,
):
    monkeypatch.setattr(orphaned, "ANSWER_S", 0.3)
    cluster.answer("scontrol", says)
    host, port = doors[srun] if srun else ("", "")
    said = orphaned.end_job("5", {"SLURM_SRUN_COMM_HOST": host, "SLURM_SRUN_COMM_PORT": str(port)})
    assert ("scancel 5" in cluster.asked) is is_ended
    assert bool(said) is is_ended


def test_a_slurm_that_does_not_answer_leaves_the_job_to_a_person(cluster: Cluster, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(orphaned, "ASK_FOR_S", 0.1)
    monkeypatch.setattr(orphaned, "AGAIN_S", 0.1)
    cluster.answer("scontrol", "exit 1")
    assert "scancel 5 ends the job" in orphaned.end_job("5", {})
    assert cluster.asked.count("scontrol show") > 1


def test_the_script_for_sbatch():
    wanted = batch.Submission(
        num_nodes=16,
        num_standby=2,
        everstep=("everstep",),
        arguments=("train.py", "--name", "it's"),
        runs="/home/u/my runs",
        exclude=("gpu3",),
    )
    lines = batch.script(wanted).splitlines()
    directives = [line for line in lines if line.startswith("#SBATCH")]
    assert {"#SBATCH --nodes=18", "#SBATCH --no-kill", "#SBATCH --no-requeue", "#SBATCH --exclude=gpu3"} < set(
        directives
    )
    (command,) = [line for line in lines if line.startswith("srun")]
    assert "everstep run --standby 2 --run-dir \"$run\" train.py --name 'it'\"'\"'s'" in command
    assert "run='/home/u/my runs'/slurm-$SLURM_JOB_ID" in lines


def test_what_slurm_prints():
    states = parse_states("n1|allocated|none\nn1|allocated|none\nn2|down*|not responding|x\nnonsense\n")
    assert (states["n1"].is_draining, states["n2"].state, states["n2"].reason) == (False, "down*", "not responding|x")
    assert parse_fields("JobId=5 JobState=PENDING Reason=(Resources)")["JobState"] == "PENDING"
    assert parse_job("sbatch: a warning\n12;cluster\n") == "12"
    with pytest.raises(SlurmError, match="no job"):
        parse_job("error")
