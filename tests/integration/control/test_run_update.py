"""`everstep update` against real runs: other code while the job trains, at once or at the next kill, and back again."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from real_run import TIMEOUT_S, Launcher, Run

from everstep.model.actions import IncidentOpened, StartWorkers, UpdateConcluded
from everstep.model.events import ControllerStarted, UpdateRequested, WorkersStarted
from everstep.model.versions import Stage

TRAIN = """
import os, sys, time
import uncompiled, torch
import everstep
import helper
weight = torch.nn.Linear(4, 4)
state = everstep.State(weight=weight)
for step in state.steps(int(sys.argv[1])):
    helper.check(step)
    print("step", step, helper.NAME, os.environ.get("SETTING", ""), *sys.argv[2:], flush=True)
    time.sleep(0.02)
"""
GOOD = "NAME = {name!r}\ndef check(step): pass\n"
BAD = """
from pathlib import Path
NAME, BEGAN = "bad", Path(__file__).with_name("began")
def check(step):
    if not BEGAN.exists():
        BEGAN.write_text(str(step))
    if step == int(BEGAN.read_text()) + 3:
        raise KeyError("no such token")
"""


START_LIMIT_S = 180.0
"""A first import of torch on a machine that has much else to do takes more than a minute."""


class Job:
    """A program in two files, of which `helper.py` is changed; and the run of it."""

    def __init__(self, launcher: Launcher, *options: object, num_ranks: int = 1) -> None:
        self.num_ranks = num_ranks
        self.folder = launcher.folder / "job"
        self.folder.mkdir()
        (self.folder / "train.py").write_text(TRAIN)
        shutil.copy(Path(__file__).parents[1] / "uncompiled.py", self.folder)
        self.write(GOOD.format(name="first"))
        self.run: Run = launcher.start("--nproc-per-node", num_ranks, *options, self.folder / "train.py", 1_000_000)
        self._home = launcher.folder / "home"

    def write(self, text: str) -> None:
        (self.folder / "helper.py").write_text(text)

    def update(self, *words: object) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "everstep.cli.main", "update", str(self.run.run_dir), *map(str, words)]
        return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, cwd=self.folder, check=False)

    def until_said(self, what: str, generation: int | None = None) -> int:
        """Every rank has printed a line with these words; the newest step that it did so for."""

        def find() -> int | None:
            steps = []
            for rank in range(self.num_ranks):
                number = self.generation if generation is None else generation
                path = self.run.run_dir / f"logs/gen-{number}/rank-{rank}/stdout.log"
                lines = path.read_text().splitlines() if path.exists() else []
                steps.append(max((int(line.split()[1]) for line in lines if what in line), default=-1))
            return None if min(steps) < 0 else min(steps)

        return self.run.until(f"{what!r} in generation {generation}", find, limit_s=START_LIMIT_S)

    def until_trained(self, version: str) -> None:
        """Progress goes on record once a minute, and before whatever is asked of the run: so something is asked."""
        doctor = [sys.executable, "-m", "everstep.cli.main", "doctor", str(self.run.run_dir)]

        def look() -> bool:
            subprocess.run(doctor, stdout=subprocess.DEVNULL, timeout=TIMEOUT_S, check=True)
            return (version, Stage.TRAINED) in self.stages()

        self.run.until(f"{version} trained", look)

    @property
    def generation(self) -> int:
        return max((start.generation for start in self.run.actions(StartWorkers)), default=0)

    def stages(self) -> list[tuple[str, Stage]]:
        return [(action.version, action.stage) for action in self.run.actions(UpdateConcluded)]

    def stop(self) -> None:
        self.run.process.send_signal(signal.SIGTERM)
        assert self.run.wait() == 128 + signal.SIGTERM


def test_code_is_changed_while_the_job_trains_and_taken_back_when_it_fails(launcher: Launcher):
    job = Job(launcher)
    job.until_said("step 8 first")
    agent = job.run.agent_pid()

    job.write("NAME = 'broken'\ndef check(step:\n")
    refused = job.update("--code", ".", "--urgent")
    assert refused.returncode == 1
    assert "refused: helper.py:2: SyntaxError" in refused.stdout

    job.write(GOOD.format(name="second"))
    applied = job.update("--code", ".", "--urgent", "--why", "a better loss", "--json")
    assert applied.returncode == 0, applied.stdout + applied.stderr + job.run.story()
    update = json.loads(applied.stdout)
    assert (update["id"], update["generation"], update["lost_steps"], update["incident"]) == ("v2", 1, 0, None)
    assert update["source"] == f"directory {job.folder}"
    before, after = job.until_said("first", 0), job.until_said("second", 1)
    assert before < after
    lines = (job.run.run_dir / "logs/gen-1/rank-0/stdout.log").read_text().splitlines()
    # A step is told before it is complete: the last one told may be done again, none is left out.
    assert lines[0] in (f"step {before} second ", f"step {before + 1} second ")
    assert not job.run.actions(IncidentOpened)  # a human's change is no fault

    job.until_trained("v2")
    job.write(BAD)  # in place: v2 is what was copied, not what is here
    taken = job.update("--code", ".", "--urgent")
    assert "v3" in taken.stdout
    job.run.until("v3 taken back", lambda: ("v3", Stage.ROLLED_BACK) in job.stages())
    job.until_said("second")
    assert job.run.agent_pid() == agent
    listed = job.update()
    assert "* v2" in listed.stdout
    assert "rolled back to v2: v3 failed 2 times at helper.py:8" in listed.stdout
    job.stop()


def test_a_change_waits_for_the_next_kill_and_outlives_the_controller(launcher: Launcher):
    job = Job(launcher)
    job.until_said("step 8 first")
    job.write(GOOD.format(name="second"))
    waiting = job.update("--code", ".")
    assert waiting.returncode == 0, waiting.stdout + waiting.stderr
    assert "at the next interruption, or after 86400 s" in waiting.stdout
    os.kill(job.run.controller_pid(), signal.SIGKILL)
    job.run.until("another controller", lambda: len(job.run.events(ControllerStarted)) == 2)

    job.write(GOOD.format(name="third"))
    newer = job.update("--code", ".", "--args", "1000000 --more", "--env", "SETTING=warm")
    assert newer.returncode == 0, newer.stdout + newer.stderr
    assert ("v1", Stage.SUPERSEDED) in job.stages()
    assert job.generation == 0  # nobody was in a hurry
    os.kill(job.run.rank_pid(0), signal.SIGKILL)
    job.until_said("third warm --more", 1)
    assert "warm" not in (job.run.run_dir / "journal.jsonl").read_text(), "the journal has names, not values"
    assert "SETTING" in (job.run.run_dir / "journal.jsonl").read_text()
    assert [event.version for event in job.run.events(UpdateRequested)] == ["v1", "v2"]
    job.stop()


@pytest.mark.soak
def test_the_controller_is_killed_between_the_request_and_its_answer(launcher: Launcher):
    job = Job(launcher)
    job.until_said("step 8 first")
    job.write(GOOD.format(name="second"))
    for number in (1, 2, 3):
        process = subprocess.Popen(
            [sys.executable, "-m", "everstep.cli.main", "update", str(job.run.run_dir), "--urgent", "--code", "."],
            cwd=job.folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        job.run.until("the request", lambda n=number: len(job.run.events(UpdateRequested)) == n)
        os.kill(job.run.events(ControllerStarted)[-1].pid, signal.SIGKILL)
        job.run.until("applied", lambda n=number: (f"v{n}", Stage.RUNNING) in job.stages())
        assert process.wait(TIMEOUT_S) == 0
        job.until_said("second", number)
        job.write(GOOD.format(name="second") + "#" * number)
    assert not job.run.actions(IncidentOpened)
    job.stop()


@pytest.mark.soak
def test_back_to_what_the_run_was_started_with_though_its_files_were_edited(launcher: Launcher):
    job = Job(launcher, num_ranks=2)
    job.until_said("step 8 first")
    job.write("raise SystemExit('not today')\n")
    taken = job.update("--code", ".", "--urgent")
    assert taken.returncode == 1
    assert "rolled back to v0" in taken.stdout + job.update().stdout
    began = job.generation
    job.until_said("first", began)
    os.kill(job.run.rank_pid(0, began), signal.SIGKILL)  # and it stays so
    job.until_said("first", began + 1)
    job.stop()


@pytest.mark.soak
def test_a_standby_really_starts_it_first(launcher: Launcher):
    job = Job(launcher, "--standby", 1, num_ranks=2)
    job.until_said("step 8 first")
    wrong = job.update("--urgent", "--args", "many")
    assert wrong.returncode == 1  # State is where the trial ends, and the arguments are read after it
    assert "rolled back to v0" in wrong.stdout
    job.write("import missing_module\n")
    assert "refused: helper.py:1: there is no module 'missing_module'" in job.update("--urgent", "--code", ".").stdout
    job.write(GOOD.format(name="second") + "open('/nowhere/data.bin')\n")
    refused = job.update("--urgent", "--code", ".")
    assert "refused: helper.py:3: FileNotFoundError" in refused.stdout
    job.write(GOOD.format(name="third"))
    good = job.update("--urgent", "--code", ".")
    assert good.returncode == 0, good.stdout + good.stderr
    assert "it starts: reached everstep.State" in job.update("--json").stdout
    job.stop()


@pytest.mark.soak
def test_a_revision_of_git(launcher: Launcher):
    job = Job(launcher, num_ranks=2)

    def git(*words: str) -> str:
        command = ["git", "-C", str(job.folder), "-c", "user.name=a", "-c", "user.email=a@b", *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    job.until_said("step 8 first")
    git("init", "-q")
    job.write(GOOD.format(name="committed"))
    git("add", ".")
    git("commit", "-q", "-m", "one")
    short = git("rev-parse", "--short", "HEAD")
    job.write(GOOD.format(name="edited since"))
    applied = job.update("--urgent", "--code", "HEAD")
    assert applied.returncode == 0, applied.stdout + applied.stderr
    assert f"v1 (git {short}, urgent" in applied.stdout
    job.until_said("committed", 1)
    assert "no-such-branch" in job.update("--code", "no-such-branch").stderr
    nowhere = Path(launcher.folder / "empty")
    nowhere.mkdir()
    assert "does not hold the run's program" in job.update("--code", nowhere).stderr
    assert {s.how for e in job.run.events(WorkersStarted) if e.generation == 1 for s in e.started} == {"fresh"}
    job.stop()
