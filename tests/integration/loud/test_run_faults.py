"""`everstep run` end to end: what dies is replaced, and whatever happens, every process ends."""

import os
import signal
import sys
import time

import pytest
from lateness import Lateness
from real_run import UNTIL_HIT, Launcher, Run, in_shm, mapped_by, processes_of

from everstep.model.actions import Concluded, Finish, IncidentClosed, IncidentOpened, StartWorkers
from everstep.model.events import ControllerStarted, NodeJoined, NodeLost, StopRequested

TWO = ("--nproc-per-node", 2)


def outcome(run) -> str:
    return run.actions(Finish)[0].outcome


def test_success(launcher: Launcher):
    run = launcher.start(*TWO, launcher.script(), 3)
    assert run.wait() == 0, run.story()
    assert outcome(run) == "succeeded"
    assert not run.actions(IncidentOpened)
    lines = run.out().splitlines()
    assert sorted(lines) == sorted(f"step {step}" for _ in range(2) for step in range(3))
    assert "2 ranks" in run.err()


def test_a_killed_rank_is_restarted(launcher: Launcher):
    run = launcher.start(*TWO, launcher.script(), 15, UNTIL_HIT)
    run.until_step(3)
    os.kill(run.rank_pid(1), signal.SIGKILL)
    assert run.wait() == 0, run.story()
    assert [closed.outcome for closed in run.actions(IncidentClosed)] == ["recovered"]
    assert {start.generation for start in run.actions(StartWorkers)} == {0, 1}
    assert run.actions(Concluded)[-1].verdict.ranks == (1,)
    assert "i1 recovered in" in run.err()


def test_an_exception_again_and_again_ends_the_run_with_its_place(launcher: Launcher):
    text = "import os, time\nif os.environ['RANK'] == '1':\n    raise KeyError('labels')\ntime.sleep(60)\n"
    run = launcher.start(*TWO, launcher.script(text))
    assert run.wait() == 10, run.story()
    assert outcome(run) == "gave-up"
    verdict = run.actions(Concluded)[-1].verdict
    assert (verdict.ranks, verdict.place.endswith("train.py:3")) == ((1,), True)
    assert "KeyError: 'labels'" in run.err()


def test_a_mode_that_may_not_act_explains_and_ends(launcher: Launcher):
    run = launcher.start("--mode", "observe", *launcher.loop(0, "exit 3"))
    assert run.wait() == 11, run.story()
    assert {start.generation for start in run.actions(StartWorkers)} == {0}


UNTIL_GO = """
i=0
while [ $i -lt $1 ] || [ ! -e go ]; do echo "step $i"; i=$((i+1)); sleep 0.05; done
"""


def test_a_killed_controller_does_not_disturb_the_training(launcher: Launcher):
    run = launcher.start(*launcher.loop(60, UNTIL_GO))
    run.until_step(3)
    os.kill(run.controller_pid(), signal.SIGKILL)
    (launcher.folder / "go").touch()
    assert run.wait() == 0, run.story()
    assert not run.actions(IncidentOpened)
    assert [event.took_over for event in run.events(ControllerStarted)] == [False, True]
    assert "the controller ended (killed by SIGKILL)" in run.err()
    assert run.out().count("step 59") == 2


def test_a_controller_killed_in_the_middle_of_a_recovery(launcher: Launcher):
    run = launcher.start(*launcher.loop(20), UNTIL_HIT)
    run.until_step(3)
    os.kill(run.rank_pid(0), signal.SIGKILL)
    run.until("the incident", lambda: run.actions(IncidentOpened))
    os.kill(run.controller_pid(), signal.SIGKILL)
    assert run.wait() == 0, run.story()
    assert [closed.outcome for closed in run.actions(IncidentClosed)] == ["recovered"]
    assert {start.generation for start in run.actions(StartWorkers)} == {0, 1}


def test_a_killed_agent_is_replaced(launcher: Launcher):
    run = launcher.start(*launcher.loop(20), UNTIL_HIT)
    run.until_step(3)
    os.kill(run.agent_pid(), signal.SIGKILL)
    assert run.wait() == 0, run.story()
    (lost,) = run.events(NodeLost)
    assert (lost.node, lost.signal) == ("n0", signal.SIGKILL)
    assert {event.node for event in run.events(NodeJoined)} == {"n0", "n1"}
    assert [closed.outcome for closed in run.actions(IncidentClosed)] == ["recovered"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_everything(launcher: Launcher, number):
    run = launcher.start(*launcher.loop())
    run.until_step(3)
    run.process.send_signal(number)
    assert run.wait(20) == 128 + number, run.story()
    assert run.events(StopRequested)[0].signal == number
    assert outcome(run) == "stopped"


STUBBORN = """
import signal, time, subprocess
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
subprocess.Popen(["sh", "-c", "trap '' TERM INT HUP; (setsid sleep 1000 &) ; sleep 1000"])
print("step 0", flush=True)
time.sleep(1000)
"""


def stubborn(launcher: Launcher) -> tuple[object, ...]:
    """Two ranks that ignore every polite signal, with children and a daemon of their own."""
    return (*TWO, "--no-python", sys.executable, launcher.script(STUBBORN))


def test_a_second_signal_ends_even_the_stubborn_at_once(launcher: Launcher):
    run = launcher.start("--shutdown-timeout", 100, *stubborn(launcher))
    run.until_step(0)
    run.process.send_signal(signal.SIGINT)
    run.until("the first signal's note", lambda: "once more" in run.err())
    with Lateness() as late:
        begun = time.monotonic()
        run.process.send_signal(signal.SIGINT)
        assert run.wait(60) == 130, run.story()
        assert time.monotonic() - begun < 5 + late.seconds
    run.assert_nothing_left(1.0)


def test_the_stubborn_are_ended_after_the_grace(launcher: Launcher):
    run = launcher.start("--shutdown-timeout", 1, *stubborn(launcher))
    run.until_step(0)
    run.process.send_signal(signal.SIGTERM)
    assert run.wait(20) == 143, run.story()
    run.assert_nothing_left(1.0)


def test_a_signal_while_the_controller_is_away(launcher: Launcher):
    run = launcher.start("--shutdown-timeout", 1, *launcher.loop())
    run.until_step(3)
    os.kill(run.controller_pid(), signal.SIGSTOP)
    run.process.send_signal(signal.SIGTERM)
    assert run.wait(30) == 143, run.story()
    assert "stopped by SIGTERM" in run.err(), "the controller is woken up to hear of it"


@pytest.mark.parametrize("kind", ["polite", "stubborn"])
def test_a_killed_launcher_leaves_nothing_within_two_seconds(launcher: Launcher, kind):
    run = launcher.start(*(launcher.loop() if kind == "polite" else stubborn(launcher)))
    run.until_step(0)
    run.process.kill()
    run.process.wait()
    run.assert_nothing_left(2.0)


def test_two_nodes_and_a_standby(launcher: Launcher):
    flags = ("--local-nodes", 2, "--nproc-per-node", 1, "--standby", 1)
    run = launcher.start(*flags, *launcher.loop(30)[2:], UNTIL_HIT)
    run.until_step(3)
    run.until("the standby", lambda: len(run.events(NodeJoined)) == 3)
    node = run.actions(StartWorkers)[0].node
    os.kill(run.agent_pid(node), signal.SIGKILL)
    assert run.wait() == 0, run.story()
    restarted = [start.node for start in run.actions(StartWorkers) if start.generation == 1]
    assert node not in restarted
    assert len(restarted) == 2


STATEFUL = """
import os, sys, time
import uncompiled, torch, torch.distributed as dist
import everstep
dist.init_process_group("gloo")
model = torch.nn.Linear(4, 4)
state = everstep.State(model=model)
is_last = os.environ["EVERSTEP_GENERATION"] == "2"
for step in state.steps(state.step + 1 + int(sys.argv[1]) if is_last else 1_000_000):
    dist.all_reduce(torch.ones(1))
    print("step", step, flush=True)
    time.sleep(0.02)
dist.destroy_process_group()
"""


@pytest.mark.parametrize("num_standby", [pytest.param(0, marks=pytest.mark.soak), 1])
def test_snapshots_outlive_agent_after_agent(launcher: Launcher, num_standby):
    run = launcher.start(*TWO, "--standby", num_standby, launcher.script(STATEFUL), 30)
    for generation in range(2):
        restored = next(start.resume_step for start in starts(run, generation))
        run.until_step(5 if restored is None else restored + 6, generation)
        run.until("the end of the recovery before", lambda n=generation: len(run.actions(IncidentClosed)) == n)
        node = next(start.node for start in run.actions(StartWorkers) if start.generation == generation)
        if num_standby:
            run.until("a standby", lambda n=generation: len(run.events(NodeJoined)) >= 2 + n)
        os.kill(run.agent_pid(node), signal.SIGKILL)
        run.until("the restart", lambda n=generation: len(run.actions(StartWorkers)) == 2 + n)
    assert run.wait() == 0, run.story()
    closed = run.actions(IncidentClosed)
    assert [(c.outcome, c.lost_steps) for c in closed] == [("recovered", 0)] * 2, run.story()
    assert all(start.resume_step is not None for start in run.actions(StartWorkers)[1:])


def starts(run: Run, generation: int) -> list[StartWorkers]:
    """When there are any."""
    return run.until(
        f"generation {generation}",
        lambda: [start for start in run.actions(StartWorkers) if start.generation == generation],
    )


def test_an_unfinished_run_goes_on_in_its_directory(launcher: Launcher):
    first = launcher.start(*launcher.loop())
    first.until_step(1)
    first.process.kill()
    first.process.wait()
    first.assert_nothing_left(2.0)
    again = launcher.start(*launcher.loop(2))
    assert again.wait() == 0, again.story()
    assert "attempt 2" in again.err()
    assert {start.generation for start in again.actions(StartWorkers)} == {0, 1}
    over = launcher.start(*launcher.loop(2))
    assert over.wait() == 2
    assert "is over (succeeded)" in over.err()


SPAWNS = """
import multiprocessing, os, signal, time
context = multiprocessing.get_context("spawn")
def work(queue):
    while True:
        queue.put(1)
        time.sleep(0.01)
if __name__ == "__main__":
    queue = context.Queue(4)  # named semaphores, which only a resource tracker unlinks
    child = context.Process(target=work, args=(queue,), daemon=True)
    child.start()
    queue.get()
    for step in range(100_000):
        print("step", step, flush=True)
        time.sleep(0.05)
"""


def semaphores(run: Run) -> set[str]:
    """Those that a process of the run has in its memory: other tests may have some, too."""
    mapped = mapped_by(processes_of(run.run_dir))
    return {name for name, file in in_shm().items() if name.startswith("sem.mp-") and file in mapped}


@pytest.mark.parametrize(
    "whom", ["launcher", *(pytest.param(whom, marks=pytest.mark.soak) for whom in ("rank", "agent"))]
)
def test_named_semaphores_do_not_outlive_their_program(launcher: Launcher, whom: str):
    run = launcher.start("--nproc-per-node", 1, launcher.script(SPAWNS))
    run.until_step(3, world_size=1)
    held = semaphores(run)
    assert held, "the program has none: nothing would be tested"
    pid = {"rank": run.rank_pid(0), "agent": run.agent_pid(), "launcher": run.process.pid}[whom]
    os.kill(pid, signal.SIGKILL)
    if whom != "launcher":
        run.until_step(3, generation=1, world_size=1)
        run.process.send_signal(signal.SIGINT)
    run.wait()
    deadline = time.monotonic() + 10.0
    while (left := held & set(in_shm())) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left
