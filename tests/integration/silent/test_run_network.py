"""A hang that the network causes, in a real run over two hosts: the verdict names the link, with what ports counted."""

import shutil
import time
from pathlib import Path

import pytest
from real_run import COMMAND

from everstep.engines.network import NetworkError
from everstep.journal.reader import read_journal
from everstep.model.actions import Concluded
from everstep.model.record import Record
from everstep.model.verdict import Verdict
from everstep.testing.hosts import Bed, Host

TRAIN = """
import uncompiled
import sys, time
from pathlib import Path
import torch, torch.distributed as dist
import everstep
dist.init_process_group("gloo")
model = torch.nn.Linear(8, 8)
state = everstep.State(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
for step in state.steps(1_000_000):
    done = torch.tensor([float(Path(sys.argv[1]).exists())])
    dist.all_reduce(done)
    print("step", step, flush=True)
    if done:
        break
    time.sleep(0.02)
dist.destroy_process_group()
"""
LIMIT_S = 120.0


@pytest.mark.timeout(600)
@pytest.mark.skipif(shutil.which("tc") is None, reason="tc is not installed")
def test_a_port_that_swallows_packets_is_evidence_of_a_network_s_hang(tmp_path: Path, only_namespaces: None):
    try:
        bed = Bed()
    except NetworkError as error:
        pytest.skip(str(error))
    program, policy, done = (tmp_path / name for name in ("train.py", "everstep.toml", "done"))
    program.write_text(TRAIN)
    policy.write_text("[policy]\nexamine = false\nwatch_slowness = false\nnode_silent_s = 60\n")
    environ = {"EVERSTEP_JOIN_TOKEN": "a token that only this test has", "OMP_NUM_THREADS": "1"}
    environ |= {"PYTHONPATH": str(Path(__file__).parents[1])}
    with bed:
        hosts = [bed.add(f"h{number}") for number in range(3)]
        shape = ["--nnodes", "3", "--config", str(policy), "--rdzv-endpoint", f"{hosts[0].address}:29400"]
        runs = []
        for number, host in enumerate(hosts):
            with (tmp_path / f"err-{number}").open("wb") as err:
                command = [*COMMAND, *shape, "--node-rank", str(number), str(program), str(done)]
                runs.append(host.start(command, env=environ, err=err))
        run_dir = hosts[0].folder / "home" / "runs" / "latest"
        until(lambda: num_steps(run_dir) > 60, tmp_path)
        hosts[1].swallow(hosts[2])
        until(lambda: of_network(run_dir), tmp_path)
        before = num_steps(run_dir)
        until(lambda: any(of_ports(verdict) for verdict in of_network(run_dir)), tmp_path)
        hosts[1].heal()
        (verdict, *_) = [each for each in of_network(run_dir) if of_ports(each)]
        one, other = (node_of(host) for host in hosts[1:])
        assert f"from {one} to {other} loses every probe one way" in verdict.sentence
        assert of_ports(verdict)[0].startswith(f"{one} eth0: qdisc_drops +"), "its own port, not one of this machine"
        assert any("tcp: retransmits +" in each.says for each in verdict.evidence)
        until(lambda: num_steps(run_dir) > before + 5, tmp_path)
        done.touch()
        until(lambda: all(run.poll() is not None for run in runs), tmp_path)
        assert [run.returncode for run in runs] == [0, 0, 0]
        assert [path.name for path in run_dir.glob("logs/gen-*")] == ["gen-0"], "it went on: nothing was restarted"


def until(condition, folder: Path) -> None:
    ends_at = time.monotonic() + LIMIT_S
    while not condition():
        said = "\n".join((folder / f"err-{number}").read_text() for number in range(3))
        assert time.monotonic() < ends_at, said
        time.sleep(0.05)


def num_steps(run_dir: Path) -> int:
    path = run_dir / "logs/gen-0/rank-0/stdout.log"
    return path.read_text().count("step") if path.exists() else 0


def node_of(host: Host) -> str:
    (path,) = host.folder.glob("home/hosts/*/nodes/*")
    return path.name


def of_network(run_dir: Path) -> list[Verdict]:
    records = [each for each in read_journal(run_dir / "journal.jsonl").entries if isinstance(each, Record)]
    actions = [action for record in records for action in record.actions]
    verdicts = [action.verdict for action in actions if isinstance(action, Concluded) and action.verdict is not None]
    return [verdict for verdict in verdicts if verdict.code == "ES-H19"]


def of_ports(verdict: Verdict) -> list[str]:
    return [each.says for each in verdict.evidence if each.source == "port" and "qdisc_drops" in each.says]
