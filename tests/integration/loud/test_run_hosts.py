"""A run over several hosts: the same command on each, joined over the network, whatever happens to one of them."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from free_ports import free_port
from real_run import COMMAND, Launcher

from everstep.engines.network import NetworkError
from everstep.journal.beside.succession import known
from everstep.journal.reader import read_journal
from everstep.model.actions import StartWorkers
from everstep.model.events import ControllerStarted, NodeJoined, NodeLost, NodeSpared
from everstep.model.record import Record
from everstep.testing.hosts import Bed, Host

TOKEN = "a token that only this test has"
SLOTS = """
i=0
while [ ! -e "$1" ]; do echo "step $i of slot $EVERSTEP_SLOT $EVERSTEP_JOIN_TOKEN"; i=$((i+1)); sleep 0.05; done
"""
VERBS = [sys.executable, "-P", "-m", "everstep.cli.main"]
LIMIT_S = 120.0


def test_two_hosts_become_one_run_and_a_stranger_none(launcher: Launcher):
    """Here both are processes of this machine: the endpoint's port says who goes first."""
    done = launcher.folder / "done"
    program = ("--no-python", "sh", launcher.script(SLOTS, "slots.sh"), done)
    shape = ("--nnodes", 2, "--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{free_port()}")
    environ = {"EVERSTEP_JOIN_TOKEN": TOKEN}
    first = launcher.start(*shape, "--node-rank", 1, *program, env=environ)
    first.until("the endpoint", lambda: "waiting for 1 more host" in first.err())
    stranger = launcher.start(*shape, *program, run_dir="stranger", env={"EVERSTEP_JOIN_TOKEN": "x" * 16})
    home = {"EVERSTEP_HOME": str(launcher.folder / "home-of-the-second")}
    second = launcher.start(*shape, *program, run_dir="second", env={**environ, **home})
    assert stranger.wait() == 2
    assert "refuses this host: its join token is not this run's" in stranger.err()
    logs = first.run_dir / "logs" / "gen-0"
    for rank in (0, 1):
        path = logs / f"rank-{rank}" / "stdout.log"
        first.until(f"output of rank {rank}", lambda path=path: path.exists() and "step 2 " in path.read_text())
    done.touch()
    assert (first.wait(), second.wait()) == (0, 0), second.err()
    assert "step 0 of slot 1" in first.out()
    assert "of slot 0" not in first.out()
    assert "step 0 of slot 0" in second.out()
    assert TOKEN not in first.out() + second.out()
    said = subprocess.run(
        [sys.executable, "-m", "everstep.cli.main", "logs", "--rank", "0", "--run-dir", str(first.run_dir)],
        capture_output=True,
        check=True,
        timeout=60,
    )
    assert b"of slot 0" in said.stdout


def test_a_host_that_is_switched_off_is_replaced_by_a_standby(tmp_path: Path, only_namespaces: None):
    try:
        bed = Bed()
    except NetworkError as error:
        pytest.skip(str(error))
    program = tmp_path / "slots.sh"
    program.write_text(SLOTS)
    policy = tmp_path / "everstep.toml"
    policy.write_text("[policy]\nnode_silent_s = 2.0\nexamine = false\n")
    done = tmp_path / "done"
    with bed:
        hosts = [bed.add(f"h{number}") for number in range(3)]
        shape = ["--nnodes", "2", "--standby", "1", "--config", str(policy)]
        shape += ["--rdzv-endpoint", f"{hosts[0].address}:29400", "--no-python", "sh", str(program), str(done)]
        runs = []
        for number, host in enumerate(hosts):
            with (tmp_path / f"err-{number}").open("wb") as err:
                runs.append(host.start([*COMMAND, *shape], env={"EVERSTEP_JOIN_TOKEN": TOKEN}, err=err))
        run_dir = hosts[0].folder / "home" / "runs" / "latest"
        until(lambda: "step 3 of" in output(run_dir, 0, 1), tmp_path)
        slot, node = of_another_host(run_dir, hosts)
        victim = host_of(node, hosts)
        victim.power_off()
        until(lambda: f"step 3 of slot {slot}" in output(run_dir, 1, slot), tmp_path)
        (lost,) = [each for each in losses(run_dir) if each.node == node]
        assert "cannot be reached" in lost.reason or "silent" in lost.reason
        done.touch()
        alive = [run for run, host in zip(runs, hosts, strict=True) if host is not victim]
        until(lambda: all(run.poll() is not None for run in alive), tmp_path)
        assert [run.returncode for run in alive] == [0, 0]
        assert hosts[0].pids() == []


CPU = Path("/sys/fs/cgroup/cpu")


@pytest.fixture
def throttle(tmp_path: Path) -> Iterator[Callable[[int], None]]:
    """A cgroup in which a process gets next to no CPU; everything is let out of it at the end."""
    group = CPU / f"everstep-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / "cpu.cfs_period_us").write_text("1000000")
        (group / "cpu.cfs_quota_us").write_text("1000")
    except OSError:
        pytest.skip("needs root and the v1 cgroup of CPUs")
    yield lambda pid: put(group, pid)
    for pid in (group / "cgroup.procs").read_text().split():
        put(CPU, int(pid))
    group.rmdir()


def put(group: Path, pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        (group / "cgroup.procs").write_text(str(pid))


def test_an_agent_without_a_cpu_is_late_and_nothing_is_lost_until_its_host_is_off(
    tmp_path: Path, only_namespaces: None, throttle: Callable[[int], None]
):
    try:
        bed = Bed()
    except NetworkError as error:
        pytest.skip(str(error))
    program, policy, done = tmp_path / "slots.sh", tmp_path / "everstep.toml", tmp_path / "done"
    program.write_text(SLOTS)
    policy.write_text("[policy]\nnode_silent_s = 2.0\nexamine = false\n")
    with bed:
        hosts = [bed.add(f"h{number}") for number in range(3)]
        shape = ["--nnodes", "2", "--standby", "1", "--config", str(policy)]
        shape += ["--rdzv-endpoint", f"{hosts[0].address}:29400", "--no-python", "sh", str(program), str(done)]
        for number, host in enumerate(hosts):
            with (tmp_path / f"err-{number}").open("wb") as err:
                host.start([*COMMAND, *shape], env={"EVERSTEP_JOIN_TOKEN": TOKEN}, err=err)
        run_dir = hosts[0].folder / "home" / "runs" / "latest"
        until(lambda: "step 3 of" in output(run_dir, 0, 1), tmp_path)
        slot, node = of_another_host(run_dir, hosts)
        victim = host_of(node, hosts)
        agent = next(pid for pid in victim.pids() if b"everstep.agent" in Path(f"/proc/{pid}/cmdline").read_bytes())
        throttle(agent)
        until(lambda: node in [e.event.node for e in records(run_dir) if isinstance(e.event, NodeSpared)], tmp_path)
        put(CPU, agent)
        before = output(run_dir, 0, slot).count("step")
        until(lambda: output(run_dir, 0, slot).count("step") > before + 10, tmp_path)
        assert losses(run_dir) == []
        throttle(agent)
        until(lambda: len([e for e in records(run_dir) if isinstance(e.event, NodeSpared)]) > 1, tmp_path)
        victim.power_off()
        until(lambda: f"step 3 of slot {slot}" in output(run_dir, 1, slot), tmp_path)
        (lost,) = losses(run_dir)
        assert lost.node == node
        done.touch()


def test_a_host_that_is_drained_leaves_and_comes_back_only_when_it_is_started_again(
    tmp_path: Path, only_namespaces: None
):
    """Without that it would be the next standby, with whatever was wrong with it."""
    try:
        bed = Bed()
    except NetworkError as error:
        pytest.skip(str(error))
    program = tmp_path / "slots.sh"
    program.write_text(SLOTS)
    policy = tmp_path / "everstep.toml"
    policy.write_text("[policy]\nexamine = false\n")
    done = tmp_path / "done"
    environ = {"EVERSTEP_JOIN_TOKEN": TOKEN}
    with bed:
        hosts = [bed.add(f"h{number}") for number in range(3)]
        shape = ["--nnodes", "2", "--standby", "1", "--config", str(policy)]
        shape += ["--rdzv-endpoint", f"{hosts[0].address}:29400", "--no-python", "sh", str(program), str(done)]
        runs = {}
        for host in hosts:
            with (tmp_path / f"err-{host.name}").open("wb") as err:
                runs[host.name] = host.start([*COMMAND, *shape], env=environ, err=err)
        run_dir = hosts[0].folder / "home" / "runs" / "latest"
        until(lambda: "step 3 of" in output(run_dir, 0, 1), tmp_path)
        until(lambda: num_joined(run_dir) == 3, tmp_path)
        slot, node = of_another_host(run_dir, hosts)
        victim = host_of(node, hosts)
        drained = hosts[0].start([*VERBS, "drain", node, "--why", "a fan"], env={})
        assert drained.wait(LIMIT_S) == 0
        until(lambda: f"step 3 of slot {slot}" in output(run_dir, 1, slot), tmp_path)
        until(lambda: runs[victim.name].poll() is not None, tmp_path)
        said = (tmp_path / f"err-{victim.name}").read_text()
        assert runs[victim.name].returncode == 1, said
        assert "the run gives this host up and continues without it" in said
        assert "drains this node: a fan" in said
        assert victim.pids() == []
        assert num_joined(run_dir) == 3, "nothing is started there"
        with (tmp_path / f"err-{victim.name}-again").open("wb") as err:
            runs[victim.name] = victim.start([*COMMAND, *shape], env=environ, err=err)
        until(lambda: num_joined(run_dir) == 4, tmp_path)
        done.touch()
        until(lambda: all(run.poll() is not None for run in runs.values()), tmp_path)
        assert [run.returncode for run in runs.values()] == [0, 0, 0]


@pytest.mark.parametrize("shape", [["--nnodes", "2", "--standby", "1"], ["--nnodes", "2:3"]], ids=["standby", "fewer"])
def test_when_the_first_host_is_switched_off_another_one_leads_the_run_to_its_end(
    tmp_path: Path, only_namespaces: None, shape: list[str]
):
    try:
        bed = Bed()
    except NetworkError as error:
        pytest.skip(str(error))
    program = tmp_path / "slots.sh"
    program.write_text(SLOTS)
    policy = tmp_path / "everstep.toml"
    policy.write_text("[policy]\nnode_silent_s = 2.0\nexamine = false\nshrink_after_s = 2.0\n")
    done = tmp_path / "done"
    environ = {"EVERSTEP_JOIN_TOKEN": TOKEN}
    with bed:
        hosts = [bed.add(f"h{number}") for number in range(3)]
        shape = [*shape, "--config", str(policy)]
        shape += ["--rdzv-endpoint", f"{hosts[0].address}:29400", "--no-python", "sh", str(program), str(done)]
        runs = []
        for number, host in enumerate(hosts):
            with (tmp_path / f"err-{number}").open("wb") as err:
                runs.append(host.start([*COMMAND, *shape], env=environ, err=err))
        run_dir = hosts[0].folder / "home" / "runs" / "latest"
        until(lambda: "step 1 of" in output(run_dir, 0, 1), tmp_path)
        until(lambda: num_voters(run_dir) == 3, tmp_path)
        hosts[0].power_off()
        until(lambda: leaders(hosts[1:]), tmp_path)
        (led,) = leaders(hosts[1:])
        until(lambda: any("step 1 of slot" in output(led, g, r) for g in (1, 2) for r in (0, 1)), tmp_path)
        done.touch()
        until(lambda: all(run.poll() is not None for run in runs[1:]), tmp_path)
        assert [run.returncode for run in runs[1:]] == [0, 0]
        assert [host.pids() for host in hosts[1:]] == [[], []]


@pytest.mark.parametrize("how", ["powered off and on", "its launcher killed"])
def test_a_first_host_that_is_started_again_joins_the_run_that_goes_on_elsewhere(
    tmp_path: Path, only_namespaces: None, how: str
):
    try:
        bed = Bed()
    except NetworkError as error:
        pytest.skip(str(error))
    program, policy, done = tmp_path / "slots.sh", tmp_path / "everstep.toml", tmp_path / "done"
    program.write_text(SLOTS)
    policy.write_text("[policy]\nnode_silent_s = 2.0\nexamine = false\n")
    with bed:
        hosts = [bed.add(f"h{number}") for number in range(3)]
        command = [*COMMAND, "--nnodes", "2", "--standby", "1", "--config", str(policy), "--node-rank", "0"]
        command += ["--rdzv-endpoint", f"{hosts[0].address}:29400", "--rdzv-id", "job"]
        command += ["--no-python", "sh", str(program), str(done)]

        def start(host: Host, name: str) -> "subprocess.Popen[bytes]":
            own = command if host is hosts[0] else [each for each in command if each not in ("--node-rank", "0")]
            with (tmp_path / f"err-{name}").open("wb") as err:
                return host.start(own, env={"EVERSTEP_JOIN_TOKEN": TOKEN}, err=err)

        runs = [start(host, host.name) for host in hosts]
        run_dir = hosts[0].folder / "home" / "runs" / "job"
        until(lambda: "step 1 of" in output(run_dir, 0, 1), tmp_path)
        until(lambda: num_voters(run_dir) == 3 and len(known(run_dir).doors) == 3, tmp_path)
        if how == "powered off and on":
            hosts[0].power_off()
            until(lambda: leaders(hosts[1:]), tmp_path)
            hosts[0].heal()
        else:
            for pid in hosts[0].pids():
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
        again = start(hosts[0], "again")
        until(lambda: "joined run job" in (tmp_path / "err-again").read_text(), tmp_path)
        until(lambda: leaders(hosts[1:]), tmp_path)
        (led,) = leaders(hosts[1:])
        until(lambda: any("step 1 of slot" in output(led, g, r) for g in (1, 2) for r in (0, 1)), tmp_path)
        assert len(list((hosts[0].folder / "home" / "runs").glob("job*"))) == 1, "a second run"
        assert len([each for each in records(run_dir) if isinstance(each.event, ControllerStarted)]) == 1
        done.touch()
        until(lambda: all(run.poll() is not None for run in (*runs[1:], again)), tmp_path)
        assert [run.returncode for run in (*runs[1:], again)] == [0, 0, 0]


def test_hosts_that_start_late_find_the_run_that_goes_on_elsewhere(tmp_path: Path, only_namespaces: None):
    """They know the lost host's address, and what they are told or remember."""
    try:
        bed = Bed()
    except NetworkError as error:
        pytest.skip(str(error))
    program, policy, done = tmp_path / "slots.sh", tmp_path / "everstep.toml", tmp_path / "done"
    program.write_text(SLOTS)
    policy.write_text("[policy]\nnode_silent_s = 2.0\nexamine = false\n")
    agent = [sys.executable, "-m", "everstep.cli.main", "agent", "--join"]
    with bed:
        hosts = [bed.add(f"h{number}") for number in range(5)]
        command = [*COMMAND, "--nnodes", "2", "--standby", "5", "--config", str(policy), "--rdzv-endpoint", "h0:29400"]
        command += ["--no-python", "sh", str(program), str(done)]

        def start(host: Host, name: str, command: list[str] = command) -> "subprocess.Popen[bytes]":
            with (tmp_path / f"err-{name}").open("wb") as err:
                return host.start(command, env={"EVERSTEP_JOIN_TOKEN": TOKEN}, err=err)

        def said(name: str) -> str:
            return (tmp_path / f"err-{name}").read_text()

        runs = [start(host, host.name) for host in hosts[:3]]
        run_dir = hosts[0].folder / "home" / "runs" / "latest"
        until(lambda: "step 1 of" in output(run_dir, 0, 1), tmp_path)
        until(lambda: num_voters(run_dir) == 3, tmp_path)
        hosts[0].power_off()
        until(lambda: leaders(hosts[1:3]), tmp_path)
        lost = start(hosts[3], "lost", [*agent, "h0:29400"])
        assert lost.wait(60) == 3
        assert "cannot join the run at h0:29400 (10.77.0.2): no answer" in said("lost")
        assert "name others that are in it: --join h0:29400,HOST" in said("lost")
        listed = start(hosts[3], "listed", [*agent, "h0:29400,h1,h2"])
        until(lambda: re.search(r"joined run \w+ at h[12]:29400 ", said("listed")), tmp_path)
        until(lambda: list(hosts[3].folder.glob("home/hosts/*/succession.json")), tmp_path)
        hosts[3].power_off()
        listed.wait(60)
        hosts[3].heal()
        runs.append(start(hosts[3], "remembering"))
        until(lambda: "joined run" in said("remembering"), tmp_path)
        hosts[0].heal()
        runs[0] = start(hosts[0], "again")
        until(lambda: "joined run" in said("again"), tmp_path)
        until(lambda: list(hosts[0].folder.glob("home/hosts/*/succession.json")), tmp_path)
        runs.append(start(hosts[4], "told", [*agent, "h0:29400"]))
        until(lambda: "joined run" in said("told"), tmp_path)
        done.touch()
        until(lambda: all(run.poll() is not None for run in runs), tmp_path)
        assert [run.returncode for run in runs] == [0] * 5


@pytest.mark.parametrize("rank", [[], ["--node-rank", "1"]], ids=["any place", "its place"])
def test_a_host_that_is_back_before_its_earlier_life_is_given_up_waits_for_its_place(
    tmp_path: Path, only_namespaces: None, rank: list[str]
):
    """Its launcher is started again while the one before is still heard of."""
    try:
        bed = Bed()
    except NetworkError as error:
        pytest.skip(str(error))
    program, policy, done = tmp_path / "slots.sh", tmp_path / "everstep.toml", tmp_path / "done"
    program.write_text(SLOTS)
    policy.write_text("[policy]\nnode_silent_s = 2.0\nexamine = false\n")
    with bed:
        hosts = [bed.add(f"h{number}") for number in range(2)]
        command = [*COMMAND, "--nnodes", "2", "--config", str(policy)]
        command += ["--rdzv-endpoint", f"{hosts[0].address}:29400"]

        def start(host: Host, name: str) -> "subprocess.Popen[bytes]":
            own = [*command, *(rank if host is hosts[1] else []), "--no-python", "sh", str(program), str(done)]
            with (tmp_path / f"err-{name}").open("wb") as err:
                return host.start(own, env={"EVERSTEP_JOIN_TOKEN": TOKEN}, err=err)

        runs = [start(host, host.name) for host in hosts]
        run_dir = hosts[0].folder / "home" / "runs" / "latest"
        until(lambda: "step 3 of" in output(run_dir, 0, 1), tmp_path)
        earlier, again = hosts[1].pids(), start(hosts[1], "again")
        said = tmp_path / "err-again"
        until(lambda: "asking again for 10 s at most" in said.read_text() or again.poll() is not None, tmp_path)
        assert again.poll() is None, said.read_text()
        for pid in earlier:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        until(lambda: "step 3 of slot 1" in output(run_dir, 1, 1), tmp_path)
        done.touch()
        until(lambda: runs[0].poll() is not None and again.poll() is not None, tmp_path)
        assert (runs[0].returncode, again.returncode) == (0, 0)


def num_voters(run_dir: Path) -> int:
    log = run_dir / "launcher.log"
    found = re.findall(r"the journal is kept by (.+)", log.read_text() if log.exists() else "")
    return found[-1].count(",") + 1 if found else 0


def leaders(hosts: list[Host]) -> list[Path]:
    """Run directories of hosts that have taken the controller over."""
    journals = [path for host in hosts for path in host.folder.glob("home/hosts/*/journal.jsonl")]
    return [path.parent for path in journals if is_led(path.parent)]


def is_led(run_dir: Path) -> bool:
    has_acted = (run_dir / "controller.log").exists()
    return has_acted and any(isinstance(r.event, ControllerStarted) and r.event.took_over for r in records(run_dir))


def until(condition, folder: Path) -> None:
    ends_at = time.monotonic() + LIMIT_S
    while not condition():
        told = "\n".join(path.read_text(errors="replace")[-2000:] for path in sorted(folder.glob("err-*")))
        assert time.monotonic() < ends_at, told
        time.sleep(0.02)


def output(run_dir: Path, generation: int, rank: int) -> str:
    path = run_dir / "logs" / f"gen-{generation}" / f"rank-{rank}" / "stdout.log"
    return path.read_text(errors="replace") if path.exists() else ""


def host_of(node: str, hosts: list[Host]) -> Host:
    return next(host for host in hosts if list(host.folder.glob(f"home/hosts/*/nodes/{node}")))


def records(run_dir: Path) -> list[Record]:
    return [each for each in read_journal(run_dir / "journal.jsonl").entries if isinstance(each, Record)]


def of_another_host(run_dir: Path, hosts: list[Host]) -> tuple[int, str]:
    """A slot of the first generation, and its node, that is not on the first host: which has which is not certain."""
    started = [each for record in records(run_dir) for each in record.actions if isinstance(each, StartWorkers)]
    elsewhere = {path.name for host in hosts[1:] for path in host.folder.glob("home/hosts/*/nodes/*")}
    return next((each.slot, each.node) for each in started if each.node in elsewhere)


def num_joined(run_dir: Path) -> int:
    return sum(isinstance(record.event, NodeJoined) for record in records(run_dir))


def losses(run_dir: Path) -> list[NodeLost]:
    return [record.event for record in records(run_dir) if isinstance(record.event, NodeLost)]
