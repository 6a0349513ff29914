"""Loud faults end to end: a line in a node's kernel log, and what a real run makes of it."""

import os
import signal
import time
from pathlib import Path

from lateness import Lateness
from real_run import Launcher, Run

from everstep.health.store import Store
from everstep.model.actions import Concluded, EvictNode, IncidentClosed, StartWorkers
from everstep.model.events import NodeAlerted, NodeJoined

STEPS = """
import time
import uncompiled, torch, torch.distributed as dist
import everstep
dist.init_process_group("gloo")
model = torch.nn.Linear(4, 4)
state = everstep.State(model=model)
for step in state.steps(100_000):
    time.sleep(0.05)
    dist.all_reduce(torch.ones(8))
    print("step", step, flush=True)
"""
XID_79 = "3,7001,5140900,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, GPU has fallen off the bus.\n"
XID_45 = "3,7002,5140901,-;NVRM: Xid (PCI:0000:3b:00): 45, pid=1234, Ch 00000010\n"


def start(launcher: Launcher, *argv: object) -> Run:
    for node in ("n0", "n1", "n2", "n3"):
        (launcher.folder / f"kmsg-{node}").touch()
    env = {"EVERSTEP_KMSG": str(launcher.folder / "kmsg-{node}")}
    run = launcher.start(*argv, "--nproc-per-node", 1, launcher.script(STEPS), env=env)
    run.until_step(20)
    return run


def write(path: Path, line: str) -> float:
    with path.open("a") as file:
        file.write(line)
    return time.time()


def listening(run: Run, node: str) -> bool:
    path = run.run_dir / "nodes" / node / "senses.json"
    return path.exists() and '"kernel log": ""' in path.read_text()


def test_a_gpu_that_fell_off_the_bus_costs_its_node_and_no_step(launcher: Launcher):
    run = start(launcher, "--local-nodes", 2, "--standby", 1)
    run.until("a standby", lambda: len(run.events(NodeJoined)) == 3)
    node = next(start.node for start in run.actions(StartWorkers) if start.slot == 1)
    run.until("its senses", lambda: listening(run, node))
    with Lateness() as late:
        written_at = write(launcher.folder / f"kmsg-{node}", XID_79 + XID_45)
        closed = run.until("recovery", lambda: next(iter(run.actions(IncidentClosed)), None))
    assert (closed.outcome, closed.lost_steps) == ("recovered", 0), run.story()
    (evicted,) = run.actions(EvictNode)
    assert evicted.node == node
    verdict = run.actions(Concluded)[0].verdict
    assert (verdict.code, str(verdict.blame), verdict.node) == ("ES-G79", "machine", node)
    decided_at = next(r.at for r in run.records() if isinstance(r.event, NodeAlerted) and r.actions)
    latency_s, recovery_s = decided_at - written_at, closed.recovered_at - written_at
    print(f"decided {latency_s:.2f} s after the line, training again after {recovery_s:.2f} s")
    assert latency_s < 5.0 + late.seconds  # one second on a machine that is not overloaded
    known = run.until("the memory", lambda: Store(launcher.folder / "home/nodes.db").hosts(time.time()))
    assert {event.code for event in known[0].events if event.code} == {"ES-G79"}
    run.process.terminate()
    run.wait()


def test_without_a_standby_the_job_goes_on_and_it_is_said(launcher: Launcher):
    run = start(launcher, "--local-nodes", 2)
    run.until("the senses of n1", lambda: listening(run, "n1"))
    write(launcher.folder / "kmsg-n1", XID_79)
    closed = run.until("an answer", lambda: next(iter(run.actions(IncidentClosed)), None))
    assert closed.outcome == "observed"
    (refusal,) = run.actions(Concluded)[0].decision.refused
    assert refusal.what == "evict n1"
    assert "standby" in refusal.why
    assert not run.actions(EvictNode)
    run.process.terminate()
    run.wait()


def test_a_line_that_is_read_after_the_rank_has_died_still_costs_its_node_and_corrects_the_verdict(launcher: Launcher):
    """The rank's end is judged without it, and the job is on its way back."""
    run = start(launcher, "--local-nodes", 2, "--standby", 1)
    run.until("a standby", lambda: len(run.events(NodeJoined)) == 3)
    node, rank = next((start.node, start.first_rank) for start in run.actions(StartWorkers) if start.slot == 1)
    run.until("its senses", lambda: listening(run, node))
    os.kill(run.rank_pid(rank), signal.SIGABRT)
    run.until("a first verdict", lambda: any(c.decision.rule == "restart-in-place" for c in run.actions(Concluded)))
    run.until("the restart", lambda: len(run.actions(StartWorkers)) > 2)
    write(launcher.folder / f"kmsg-{node}", XID_79)
    run.until("the machine's end", lambda: run.actions(EvictNode))
    of_first = [each for each in run.actions(Concluded) if each.incident == "i1"]
    assert (of_first[0].verdict.code, str(of_first[0].verdict.confidence)) == ("ES-P02", "low")
    last = of_first[-1].verdict
    assert (last.code, str(last.blame), last.node, str(last.confidence)) == ("ES-G79", "machine", node, "high")
    assert of_first[-1].decision.rule in ("evict", "late-evidence"), "before it had recovered, or after"
    assert [each.node for each in run.actions(EvictNode)] == [node]
    run.until("recovery", lambda: any(c.outcome == "recovered" for c in run.actions(IncidentClosed)))
    run.process.terminate()
    run.wait()


def test_a_line_that_is_there_when_the_rank_dies_is_read_before_the_verdict(launcher: Launcher):
    """A plain file is looked at every quarter of a second, and a restart takes less."""
    run = start(launcher, "--local-nodes", 2, "--standby", 1)
    run.until("a standby", lambda: len(run.events(NodeJoined)) == 3)
    node, rank = next((start.node, start.first_rank) for start in run.actions(StartWorkers) if start.slot == 1)
    run.until("its senses", lambda: listening(run, node))
    write(launcher.folder / f"kmsg-{node}", XID_79)
    os.kill(run.rank_pid(rank), signal.SIGABRT)
    closed = run.until("recovery", lambda: next(iter(run.actions(IncidentClosed)), None))
    assert closed.outcome == "recovered"
    assert [c.verdict.code for c in run.actions(Concluded)][-1] == "ES-G79"
    assert [each.node for each in run.actions(EvictNode)] == [node]
    assert {each.incident for each in run.actions(Concluded)} == {"i1"}, "one fault, one incident"
    run.process.terminate()
    run.wait()
