"""Flags, environment, file, preset: who wins, and what is refused with which words."""

import pytest

from everstep.core.state.policy import preset
from everstep.errors import ConfigError
from everstep.launcher.arguments import options
from everstep.launcher.arguments.settings import resolve
from everstep.launcher.run import signal_numbers
from everstep.model.spec import Launch, Mode

HAS_SHUTDOWN_TIMEOUT = "shutdown_timeout" in {action.dest for action in options.parser()._actions}
with_its_flag = pytest.mark.skipif(not HAS_SHUTDOWN_TIMEOUT, reason="torchrun has --shutdown-timeout since torch 2.13")


def settings(*argv, environ=None):
    return resolve(options.parse([*argv, "train.py", "--lr", "1"]), environ or {})


def test_the_bare_command_is_one_rank_that_everstep_may_restart():
    made = settings()
    assert (made.num_slots, made.nproc_per_node, made.num_standby) == (1, 1, 0)
    assert (made.mode, made.launch, made.policy) == (Mode.ACT, Launch.SCRIPT, preset("default"))
    assert (made.program, made.args) == ("train.py", ("--lr", "1"))


@pytest.mark.parametrize(
    "flags",
    [
        ["--local-nodes", "2", "--nproc-per-node", "3"],
        ["--local_nodes=2", "--nproc_per_node=3"],
        ["--nnodes", "1:2", "--local-nodes", "2", "--nproc-per-node", "3"],
    ],
)
def test_shape(flags):
    made = settings(*flags)
    assert (made.num_slots, made.nproc_per_node) == (2, 3)
    assert bool(made.notes) == (flags[0] == "--nnodes"), "that nobody else can come is said"


@pytest.mark.parametrize("nnodes", ["1", "1:1", "1:4"])
def test_nnodes_means_the_machines_that_are_there(nnodes):
    assert settings("--nnodes", nnodes).num_slots == 1


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--nproc-per-node", "0"], "at least 1"),
        (["--nproc-per-node", "-2"], "at least 1"),
        (["--nproc-per-node", "many"], "auto, cpu, gpu, xpu"),
        (["--nnodes", "0"], "min_nodes must be > 0"),
        (["--nnodes", "3:2"], "<= max_nodes"),
        (["--nnodes", "a:b"], "MIN:MAX"),
        (["--mode", "obey"], "observe, advise, act"),
        (["--policy", "brave"], "conservative, default, aggressive"),
        (["--standby", "-1"], "at least 0"),
        (["--ui-port", "70000"], "between 0 and 65535"),
        (["--max-restarts", "-1"], "max_restarts must be >= 0"),
        (["--local-nodes", "0"], "at least 1"),
        pytest.param(["--shutdown-timeout", "-1"], "must be non-negative", marks=with_its_flag),
        (["--local-ranks-filter", "0,x"], "0,1,2"),
        (["--no-python", "-m"], "exclude each other"),
        (["--config", "/nowhere.toml"], "cannot be read"),
    ],
)
def test_what_is_wrong_is_said_with_what_is_allowed(flags, words):
    with pytest.raises(ConfigError, match=words) as caught:
        settings(*flags)
    assert flags[0] == "--no-python" or flags[1].split(":")[0] in str(caught.value)


def test_max_restarts_overrides_the_policy_only_when_given(monkeypatch):
    assert settings().policy.max_restarts == preset("default").max_restarts
    assert not settings().policy.exact_restarts
    given = settings("--max-restarts", "0").policy
    assert (given.max_restarts, given.exact_restarts) == (0, True)
    monkeypatch.setenv("PET_MAX_RESTARTS", "7")
    given = settings().policy
    assert (given.max_restarts, given.exact_restarts) == (7, True)


@with_its_flag
def test_shutdown_timeout_is_the_grace_of_a_stop():
    made = settings("--shutdown-timeout", "9", environ={"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "12"}).policy
    assert (made.shutdown_s, made.stop_grace_s) == (9.0, 9.0)


def test_torchs_variable_says_how_long_a_rank_may_save():
    assert settings().policy.shutdown_s == 30.0
    made = settings(environ={"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "12"}).policy
    assert (made.shutdown_s, made.stop_grace_s) == (12.0, preset("default").stop_grace_s)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "everstep.toml"
    path.write_text(
        'mode = "observe"\nstandby = 1\nrun_dir = "/from/file"\n[policy]\nname = "aggressive"\nsettle_s = 2\n'
    )
    return str(path)


def test_flag_over_environment_over_file_over_preset(file):
    environ = {"EVERSTEP_CONFIG": file, "EVERSTEP_MODE": "advise", "EVERSTEP_STANDBY": "2"}
    made = settings("--standby", "3", environ=environ)
    assert made.num_standby == 3  # flag
    assert made.mode is Mode.ADVISE  # environment
    assert made.run_dir == "/from/file"  # file
    assert made.policy.settle_s == 2.0  # file, over its own preset
    assert made.policy.max_restarts == preset("aggressive").max_restarts  # preset of the file


def test_a_flag_names_the_preset_and_the_file_still_overrides_its_values(file):
    made = settings("--config", file, "--policy", "conservative")
    assert (made.policy.name, made.policy.settle_s) == ("conservative", 2.0)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "standbys = 1",
            "unknown key 'standbys'; allowed: local_nodes, standby, mode, run_dir, ui_port, network,",
        ),
        ("[policy]\nmax_restart = 1", "unknown key 'max_restart'; allowed: name, max_restarts"),
        ('[policy]\nmax_restarts = "many"', "must be a whole number"),
        ("[policy]\nsettle_s = true", "must be a number"),
        ("[policy]\nmax_restarts = -1", "must not be negative"),
        ("policy = 3", "a preset's name or a table"),
        ("mode = ", "not TOML"),
    ],
)
def test_a_file_with_a_mistake_is_refused(tmp_path, text, words):
    path = tmp_path / "everstep.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=words):
        settings("--config", str(path))


def test_an_environment_default_of_torchrun_counts_as_given(monkeypatch):
    monkeypatch.setenv("PET_NPROC_PER_NODE", "4")
    monkeypatch.setenv("PET_RDZV_CONF", "a")
    monkeypatch.setenv("PET_NODE_RANK", "1")
    assert options.parse(["train.py"]).nproc_per_node == "4"
    with pytest.raises(ConfigError, match="--node-rank 1: --nnodes 1:1 is one host"):
        settings()
    with pytest.raises(ConfigError, match="must have a value"):
        settings("--node-rank", "0")


OUR_FLAGS = (
    "--local-nodes",
    "--engine",
    "--exit-codes",
    "--standby",
    "--policy",
    "--mode",
    "--run-dir",
    "--ui-port",
    "--network",
    "--racks",
    "--tls",
    "--leftovers",
    "--config",
    "--checkpoint-dir",
    "--checkpoint-every",
    "--checkpoint-keep",
    "--init-from",
)


def test_our_flags_are_frozen():
    """A new flag is a decision: most settings belong into the file."""
    import torch.distributed.run as torchrun

    torchs = {name for action in torchrun.get_args_parser()._actions for name in action.option_strings}
    ours = {name for action in options.parser()._actions for name in action.option_strings}
    assert {name for name in ours - torchs if "_" not in name} == set(OUR_FLAGS)
    assert torchs <= ours


@pytest.mark.parametrize("name", ["SIGKILL", "SIGNONE", "SIG_IGN", "SIGCHLD", "sigterm"])
def test_a_signal_that_cannot_be_handled_is_refused(name):
    with pytest.raises(ConfigError, match=name):
        signal_numbers([name])


def test_racks_are_names_in_turn():
    assert settings().racks == ()
    assert settings("--racks", "a,a,b").racks == ("a", "a", "b")
    assert settings(environ={"EVERSTEP_RACKS": "row1/leaf3"}).racks == ("row1/leaf3",)
    for bad in ("a,,b", "a b", "-a", "x" * 65):
        with pytest.raises(ConfigError, match="is not the name of a rack"):
            settings(f"--racks={bad}")


def test_the_network_between_nodes_is_loopback_unless_asked_for():
    assert settings().network == "loopback"
    assert settings("--network", "namespaces").network == "namespaces"
    assert settings(environ={"EVERSTEP_NETWORK": "auto"}).network == "auto"
    with pytest.raises(ConfigError, match="must be loopback, namespaces or auto"):
        settings("--network", "bridge")
