"""How many hosts, where they meet and which one this is: from torchrun's flags, or from Slurm's variables."""

import argparse

import pytest

from everstep.cli.act import agent
from everstep.errors import ConfigError
from everstep.launcher.arguments import hosts, options
from everstep.launcher.arguments.settings import resolve
from everstep.launcher.joining import spreading

SLURM = {
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_NODES": "4",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_NODELIST": "gpu[007-009,12]",
    "SLURM_NODEID": "2",
}


def settings(*flags, environ=None):
    return resolve(options.parse([*flags, "train.py"]), environ or {})


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--rdzv-backend", "c10d", "--rdzv-endpoint", "head:29411"], ("head", 29411, None)),
        (["--rdzv-backend", "c10d", "--rdzv-endpoint", "head"], ("head", 29400, None)),
        (["--rdzv-endpoint", "[2001:db8::1]:29411", "--node-rank", "1"], ("2001:db8::1", 29411, 1)),
        (["--master-addr", "10.0.0.1", "--master-port", "29533", "--node-rank", "0"], ("10.0.0.1", 29533, 0)),
        (["--master-addr", "head"], ("head", 29500, None)),
    ],
)
def test_torchruns_flags_say_where_hosts_meet(flags, expected):
    found = settings("--nnodes", "2", *flags)
    assert found.hosts is not None
    assert (found.hosts.host, found.hosts.port, found.hosts.node_rank) == expected
    assert (found.num_slots, found.num_standby, found.store_port) == (2, 0, 0)


def test_the_number_of_hosts_may_change_and_the_run_waits_for_them_as_long_as_torchrun():
    conf = ("--rdzv-conf", "join_timeout=33,last_call_timeout=7")
    found = settings("--nnodes", "2:4", "--node-rank", "1", "--rdzv-endpoint", "head:1", *conf)
    assert (found.min_slots, found.num_slots, found.num_standby) == (2, 4, 0)
    assert (found.policy.node_timeout_s, found.policy.shrink_after_s) == (33.0, 7.0)
    assert found.hosts.node_rank is None
    assert "--node-rank 1 is ignored" in found.notes[0]
    assert settings("--nnodes", "2:2", "--rdzv-endpoint", "head:1").min_slots == 0
    assert settings("--nnodes", "2:4", "--rdzv-endpoint", "head:1").policy.shrink_after_s == 30.0
    assert settings("--nnodes", "2", "--rdzv-endpoint", "head:1").policy.node_timeout_s == hosts.JOIN_LIMIT_S
    assert settings().policy.node_timeout_s == 60.0


@pytest.mark.parametrize(("given", "words"), [("", "begins with no host"), ("head:0", "between 1 and 65535")])
def test_a_host_is_told_at_once_that_it_would_join_nothing(given, words):
    with pytest.raises(ConfigError, match=words):
        agent.run(argparse.Namespace(join=given, node_rank=None))


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--rdzv-endpoint", "head:0"], "give all hosts the same port"),
        (["--rdzv-endpoint", "head:x"], "must be an integer"),
        (["--rdzv-endpoint", ","], "begins with no host"),
        (["--rdzv-endpoint", " ,h1:1"], "begins with no host"),
        (["--rdzv-endpoint", "head:1,h1:0"], "port 0: give all hosts the same port"),
        (["--rdzv-endpoint", "head:1", "--node-rank", "2"], "must be 0 to 1"),
        (["--rdzv-endpoint", "head:1", "--local-nodes", "2"], "each host is one node"),
        (["--rdzv-endpoint", "head:1", "--network", "namespaces"], "leave it out with several hosts"),
        (["--rdzv-endpoint", "head:1", "--rdzv-conf", "join_timeout=never"], "join_timeout=never"),
    ],
)
def test_what_cannot_be_meant_is_refused(flags, words):
    with pytest.raises(ConfigError, match=words):
        settings("--nnodes", "2", *flags)


def test_slurms_variables_are_enough():
    found = settings(environ=SLURM)
    assert found.hosts is not None
    assert (found.hosts.num, found.hosts.host, found.hosts.node_rank) == (4, "gpu007", 2)
    assert 1024 < found.hosts.port < 32768
    other = settings(environ={**SLURM, "SLURM_JOB_ID": "4712"})
    assert other.hosts is not None
    assert other.hosts.port != found.hosts.port


def test_a_batch_script_is_spread_over_its_nodes_and_a_task_is_not(monkeypatch):
    monkeypatch.setattr(spreading.shutil, "which", lambda name: f"/usr/bin/{name}")
    batch = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "4"}
    command = spreading.srun_command("slurm", ["--standby", "1", "train.py"], batch)
    assert command[0] == "srun"
    assert "--nodes=4" in command
    assert command[-4:] == ("run", "--standby", "1", "train.py")
    assert spreading.srun_command("slurm", ["train.py"], {**batch, **SLURM}) == ()
    for engine, environ, words in (("slurm", {}, "everstep submit"), ("pbs", batch, "must be one of slurm")):
        with pytest.raises(ConfigError, match=words):
            spreading.srun_command(engine, ["train.py"], environ)


def test_the_last_nodes_of_a_slurm_step_wait_as_standbys():
    active, waiting = (settings("--standby", "1", environ={**SLURM, "SLURM_NODEID": rank}) for rank in "23")
    assert active.hosts is not None
    assert waiting.hosts is not None
    assert (active.hosts.num, active.hosts.node_rank, active.num_standby) == (3, 2, 1)
    assert (waiting.hosts.num, waiting.hosts.node_rank) == (3, None)
    with pytest.raises(ConfigError, match="none would be left to train"):
        settings("--standby", "4", environ=SLURM)


@pytest.mark.parametrize(
    "changed",
    [
        {"SLURM_STEP_NUM_TASKS": "8"},  # several tasks on a node
        {"SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_NUM_TASKS": "1"},
        {"SLURM_STEP_ID": ""},  # the batch script itself
        {"SLURM_STEP_NODELIST": ""},
        {"SLURM_NODEID": "x"},
    ],
)
def test_another_kind_of_slurm_job_is_one_machine(changed):
    assert settings(environ={**SLURM, **changed}).hosts is None


@pytest.mark.parametrize(
    "flags",
    [
        ("--standalone",),
        ("--local-nodes", "2"),
        ("--nnodes", "1", "--node-rank", "0"),
        ("--rdzv-endpoint", "localhost:1"),
    ],
)
def test_what_the_user_says_counts_more_than_slurm(flags):
    assert settings(*flags, environ=SLURM).hosts is None


@pytest.mark.parametrize(
    ("nodelist", "first"),
    [
        ("n0", "n0"),
        ("n[0-3]", "n0"),
        ("gpu[007-031,40],login1", "gpu007"),
        ("a,b", "a"),
        ("rack[1-2]n[3,5]", "rack1n3"),
        ("n[5]", "n5"),
        ("", ""),
    ],
)
def test_the_first_host_of_slurms_short_form(nodelist, first):
    assert hosts.first_host(nodelist) == first
