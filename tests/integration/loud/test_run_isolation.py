"""Real nodes in network namespaces: one is cut off, and nothing that it does afterwards counts; nothing is left."""

import contextlib
import os
import signal
import socket
import time
from collections.abc import Iterable
from pathlib import Path

import pytest
from lateness import Lateness
from real_run import Launcher, Run, processes_of

from everstep.engines.freezing import descendants
from everstep.engines.network import Namespaces, NetworkError
from everstep.model.actions import StartWorkers
from everstep.model.events import ControllerStarted, DrillRequested, NodeLost, NodeSilent

TIMED = """
i=0
while [ $i -lt 100000 ]; do echo "step $i $(date +%s.%N)"; i=$((i+1)); sleep 0.05; done
"""
NODES = ("--local-nodes", 2, "--standby", 1, "--nproc-per-node", 1)
QUICK = "[policy]\nnode_silent_s = 2.0\nexamine = false\n"


@pytest.fixture
def privileged(only_namespaces: None) -> None:
    try:
        Namespaces().close()
    except NetworkError as error:
        pytest.skip(str(error))


def start(launcher: Launcher, *options: object) -> Run:
    config = launcher.folder / "everstep.toml"
    config.write_text(QUICK)
    run = launcher.start(*NODES, "--config", config, *options, "--no-python", "sh", launcher.script(TIMED, "timed.sh"))
    until_stepping(run, 0)
    run.until("the standby", lambda: len(list((run.run_dir / "nodes").glob("*/agent.log"))) == 3)
    return run


def until_stepping(run: Run, generation: int) -> None:
    run.until(
        f"steps of generation {generation}", lambda: all(len(times(run, generation, rank)) > 3 for rank in (0, 1))
    )


def times(run: Run, generation: int, rank: int) -> list[float]:
    path = run.run_dir / f"logs/gen-{generation}/rank-{rank}/stdout.log"
    lines = path.read_text().splitlines() if path.exists() else []
    return [float(line.split()[2]) for line in lines if line.count(" ") == 2 and line[-1].isdigit()]


def namespaces_of(pids: Iterable[int]) -> set[str]:
    """Other than this process's."""
    found = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            found.add(os.readlink(f"/proc/{pid}/ns/net"))  # noqa: PTH115 - no file is behind it
    return found - {os.readlink("/proc/self/ns/net")}  # noqa: PTH115


def all_pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def until_all_gone(ours: set[str], limit_s: float = 5.0) -> None:
    """No process of anybody is in one of these. Tests beside this one have namespaces, too."""
    began = time.monotonic()
    with Lateness() as late:
        while left := namespaces_of(all_pids()) & ours:
            assert time.monotonic() - began < limit_s + late.seconds, left
            time.sleep(0.05)


def decided_after_s(run: Run, node: str, late_s: float) -> float:
    """Nobody else is lost, but where the machine was so late that others were missed as well."""
    (asked,) = run.events(DrillRequested)
    lost = next(event for event in run.events(NodeLost) if event.node == node)  # its engine may report the end later
    others = {event.node for event in run.events(NodeLost)} - {node}
    missed = {event.node for event in run.events(NodeSilent)} if late_s > 1.0 else set()
    assert others <= missed
    return lost.at - asked.at


def node_of_rank_1(run: Run) -> str:
    return next(action.node for action in run.actions(StartWorkers) if action.slot == 1)


def assert_never_at_the_same_time(run: Run, rank: int) -> None:
    """The slot's last step in one generation was before its first in the next."""
    assert max(times(run, 0, rank)) < min(times(run, 1, rank))


def test_a_cut_node_is_replaced_in_time_and_nothing_is_left_of_all_that(launcher: Launcher, privileged: None):
    before = socket.if_nameindex()
    run = start(launcher, "--network", "namespaces")
    ours: set[str] = set()

    def are_apart() -> bool:
        ours.update(namespaces_of([*processes_of(run.run_dir), *descendants(run.process.pid)]))
        return len(ours) >= 3

    run.until("each node in a namespace of its own", are_apart)
    assert socket.if_nameindex() == before, "nobody else sees them"
    node = node_of_rank_1(run)
    with Lateness() as late:
        drilled = run.drill("cut-node", node, "--seconds", 30)
        until_stepping(run, 1)
    assert drilled.code in ("ES-P06", None)
    assert decided_after_s(run, node, late.seconds) < 5.0 + late.seconds
    assert_never_at_the_same_time(run, 1)
    assert are_apart(), "also the one that came in its place"
    run.process.send_signal(signal.SIGKILL)
    run.process.wait()
    run.assert_nothing_left(30.0)  # an agent that is only starting hears of it late on a busy machine
    # A process that ends has no memory, by which it is known as ours, a moment before it is out of its namespace.
    until_all_gone(ours)
    assert socket.if_nameindex() == before


@pytest.mark.soak
def test_a_frozen_node_is_replaced_in_time_and_never_goes_on(launcher: Launcher):
    run = start(launcher)
    node = node_of_rank_1(run)
    agent = run.agent_pid(node)
    with Lateness() as late:
        run.drill("freeze-node", node, "--seconds", 30)
        until_stepping(run, 1)
    assert decided_after_s(run, node, late.seconds) < 5.0 + late.seconds
    assert [event.node for event in run.events(NodeSilent)] == [node]
    assert not Path(f"/proc/{agent}").exists(), "it was ended while it stood still"
    assert_never_at_the_same_time(run, 1)
    run.process.terminate()
    run.wait()


@pytest.mark.soak
@pytest.mark.parametrize("network", ["loopback", "namespaces"])
def test_a_controller_that_stands_still_or_dies_costs_no_node(launcher: Launcher, privileged: None, network: str):
    run = start(launcher, "--network", network)
    pid = run.controller_pid()
    os.kill(pid, signal.SIGSTOP)
    steps = len(times(run, 0, 0))
    run.until("steps without a controller", lambda: len(times(run, 0, 0)) > steps + 100)  # 5 s: two leases
    os.kill(pid, signal.SIGCONT)
    steps = len(times(run, 0, 0))
    run.until("steps afterwards", lambda: len(times(run, 0, 0)) > steps + 40)
    os.kill(pid, signal.SIGKILL)
    run.until("another controller", lambda: len(run.events(ControllerStarted)) == 2)
    steps = len(times(run, 0, 0))
    run.until("steps afterwards", lambda: len(times(run, 0, 0)) > steps + 100)
    assert not run.events(NodeLost)
    assert not run.events(NodeSilent)
    run.process.terminate()
    run.wait()
