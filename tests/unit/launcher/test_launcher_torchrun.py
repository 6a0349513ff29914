"""torchrun's flags: each means the same, or is refused with a reason; none is accepted and ignored."""

import os
import re
import socket
from pathlib import Path

import pytest
import torch.distributed.run as theirs

from everstep.errors import ConfigError
from everstep.launcher.arguments import exit_codes, options, torchrun_table
from everstep.launcher.arguments.settings import Settings, resolve

ROOT = Path(__file__).parents[3]
THEIR_FLAGS = {action.dest for action in theirs.get_args_parser()._actions} - {"help"}
OLDEST = {"duplicate_stderr_filters", "duplicate_stdout_filters", "event_log_handler", "numa_binding"}
OLDEST |= {"shutdown_timeout", "signals_to_handle", "virtual_local_rank"}
"""What torch 2.4's torchrun has not."""


def settings(*argv: str, environ: dict[str, str] | None = None) -> Settings:
    return resolve(options.parse([*argv, "train.py"]), environ or {})


def test_every_flag_of_torchrun_is_in_the_table():
    """A new torch with a new flag fails here until somebody has decided what it means."""
    assert set(torchrun_table.FLAGS) >= THEIR_FLAGS
    assert set(torchrun_table.FLAGS) - THEIR_FLAGS <= set(options._SINCE) | torchrun_table.LATER
    assert {meaning.kind for meaning in torchrun_table.FLAGS.values()} <= {"same", "in part", "refused"}


def only_with(*dests: str):
    return pytest.mark.skipif(not THEIR_FLAGS.issuperset(dests), reason=f"this torch's torchrun has no {dests}")


def each(kind: str):
    """Flags of which the table says values that are refused, or accepted."""
    return [pytest.param(name, marks=only_with(name)) for name, m in torchrun_table.FLAGS.items() if getattr(m, kind)]


@pytest.mark.skipif(set(torchrun_table.FLAGS) - THEIR_FLAGS != torchrun_table.LATER, reason="the page is of torch 2.13")
def test_the_table_is_the_one_in_the_docs():
    expected = "run `python -m everstep.launcher.arguments.torchrun_table > docs/torchrun.md`"
    assert (ROOT / "docs" / "torchrun.md").read_text() == torchrun_table.render(), expected


@pytest.mark.parametrize("dest", each("refused"))
def test_what_the_table_calls_refused_is(dest):
    for value in torchrun_table.FLAGS[dest].refused:
        flag = "--" + dest.replace("_", "-")
        with pytest.raises(ConfigError) as caught:
            settings(flag, value)
        assert flag in str(caught.value) or "rendezvous" in str(caught.value)


@pytest.mark.parametrize("dest", each("accepted"))
def test_what_the_table_calls_accepted_is(dest):
    for value in torchrun_table.FLAGS[dest].accepted:
        settings("--" + dest.replace("_", "-"), value)


@pytest.mark.parametrize(
    ("flags", "environ"),
    [
        (["--nnodes", "2"], {}),
        (["--nnodes", "2:4", "--rdzv-id", "a"], {}),
        (["--nnodes", "2", "--node-rank", "0"], {}),
        (["--nnodes", "2", "--rdzv-backend", "c10d", "--standalone"], {}),
        (["--nnodes", "2"], {"SLURM_NNODES": "2"}),
        (["--node-rank", "1"], {}),
        (["--rdzv-endpoint", "203.0.113.9:29400"], {}),
        (["--rdzv-backend", "c10d", "--rdzv-endpoint", "[2001:db8::9]:29400"], {}),
        (["--master-addr", "203.0.113.9"], {}),
    ],
)
def test_another_machine_without_a_place_to_meet_is_refused(flags, environ):
    with pytest.raises(ConfigError, match=r"othing was started") as caught:
        settings(*flags, environ=environ)
    assert ("--local-nodes 2" in str(caught.value)) == (flags[0] == "--nnodes")


@pytest.mark.parametrize(
    "flags",
    [
        ["--rdzv-endpoint", "localhost:29400", "--rdzv-backend", "c10d"],
        ["--rdzv-endpoint", "127.0.0.1:29400", "--rdzv-backend", "c10d"],
        ["--rdzv-endpoint", "[::1]:29400", "--standalone"],
        ["--master-addr", "127.0.0.1"],
        ["--master-addr", socket.gethostname()],
        ["--node-rank", "0", "--nnodes", "1"],
    ],
)
def test_this_machine_is_not(flags):
    settings(*flags)


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--rdzv-backend", "nonsense"], "The rendezvous backend 'nonsense' is not registered"),
        (["--rdzv-conf", "abc"], "The rendezvous configuration option 'abc' must have a value specified"),
        (["--rdzv-conf", "=1"], "must be in format"),
        (["--logs-specs", "nope"], r"Could not find entrypoint under 'torchrun.logs_specs\[nope\]' key"),
        (["--nnodes", "1:2:3"], "is not in"),
        (["--rdzv-endpoint", "localhost:x"], "must be an integer"),
        (["--rdzv-endpoint", "localhost"], "port is missing in endpoint"),
        pytest.param(["--shutdown-timeout", "-3"], "must be non-negative, got -3", marks=only_with("shutdown_timeout")),
    ],
)
def test_nonsense_is_refused_with_torchruns_sentence(flags, sentence):
    with pytest.raises(ConfigError, match=sentence):
        settings(*flags)


@only_with("virtual_local_rank")
def test_virtual_local_rank_needs_a_device_for_every_rank():
    flags = ("--virtual-local-rank", "--nproc-per-node", "2")
    assert settings(*flags).virtual_local_rank
    assert settings(*flags, environ={"CUDA_VISIBLE_DEVICES": "4,5"}).virtual_local_rank
    with pytest.raises(ConfigError, match="local_rank 1 exceeds available GPUs in CUDA_VISIBLE_DEVICES=4"):
        settings(*flags, environ={"CUDA_VISIBLE_DEVICES": "4"})


@pytest.mark.parametrize("action", [a for a in theirs.get_args_parser()._actions if a.option_strings])
def test_every_abbreviation_means_what_it_means_to_torchrun(action):
    """Also those that a flag of ours begins with."""
    for name in (each for each in action.option_strings if each.startswith("--")):
        for end in range(3, len(name) + 1):
            assert _understood(options.parser(), name[:end]) == _understood(theirs.get_args_parser(), name[:end])


def _understood(parser, option: str) -> list[str]:
    return sorted({found[0].dest for found in parser._get_option_tuples(option)})


def test_our_own_flags_are_written_out():
    with pytest.raises(SystemExit):
        options.parse(["--local-n", "2", "train.py"])


@pytest.mark.parametrize(
    ("flags", "address", "port"),
    [
        ([], "localhost", 0),
        (["--standalone"], "localhost", 0),
        (["--local-addr", "127.0.0.3"], "127.0.0.3", 0),
        (["--master-port", "29544"], "127.0.0.1", 29544),
        (["--master-addr", "localhost", "--master-port", "29544", "--local-addr", "127.0.0.3"], "localhost", 29544),
        (["--rdzv-endpoint", "localhost:29533"], "localhost", 29533),
        (["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:29411"], "localhost", 0),
        (["--master-port", "29544", "--standalone"], "localhost", 0),
    ],
)
def test_where_ranks_meet_is_where_torchrun_says(flags, address, port):
    made = settings(*flags)
    assert (made.store_host, made.store_port) == (address, port)


@pytest.mark.parametrize(
    ("flags", "told", "directory"),
    [
        (["--rdzv-id", "job77", "--rdzv-backend", "c10d"], "job77", "job77"),
        (["--rdzv-id", "job 77/a"], "job 77/a", "job-77-a"),
        (["--rdzv-id", "../x"], "../x", "x"),
        (["--rdzv-id", "latest"], "latest", ""),
        (["--rdzv-id", "a" * 300], "a" * 300, "a" * 90),
        (["--rdzv-id", "äöü"], "äöü", ""),
        (["--master-port", "29544"], "none", ""),
        (["--rdzv-backend", "c10d"], "none", ""),
    ],
)
def test_the_id_is_told_as_it_is_and_makes_a_directory_that_can_be(flags, told, directory):
    made = settings(*flags)
    assert (made.rdzv_id, made.run_id) == (told, directory)


@pytest.mark.parametrize("flags", [[], ["--standalone", "--rdzv-id", "job77"]])
def test_an_id_that_nobody_gave_is_a_uuid(flags):
    made = settings(*flags)
    assert re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", made.rdzv_id)
    assert made.run_id == ""


SLURM_STEP = {
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_NODEID": "0",
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NODELIST": "gpu[1-2]",
}


@pytest.fixture
def earlier(monkeypatch):
    """The torchrun of an earlier torch: it has fewer flags, and a default for the port."""

    def parser():
        made = theirs.get_args_parser()
        for action in [action for action in made._actions if action.dest in OLDEST]:
            made._remove_action(action)
            for option in action.option_strings:
                del made._option_string_actions[option]
        port = next(action for action in made._actions if action.dest == "master_port")
        port.default = 29500 if port.default is None else port.default  # PET_MASTER_PORT
        return made

    real = options.part
    monkeypatch.setattr(options, "part", lambda *name: parser if name[1] == "get_args_parser" else real(*name))


@pytest.mark.usefixtures("earlier")
def test_an_earlier_torchrun_is_asked_for_what_it_has():
    made = settings()
    assert (made.store_host, made.store_port) == ("localhost", 0)
    assert re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", made.rdzv_id)
    assert settings("--master-port", "29500").store_port == 29500
    with pytest.raises(ConfigError, match="othing was started"):
        settings("--nnodes", "2")
    with pytest.raises(SystemExit):
        settings("--shutdown-timeout", "9")


@pytest.mark.usefixtures("earlier")
def test_slurms_endpoint_counts_with_an_earlier_torchrun():
    made = settings(environ=SLURM_STEP)
    assert made.hosts is not None
    assert made.hosts.host == "gpu1"


@pytest.mark.usefixtures("earlier")
def test_a_port_of_the_environment_is_one_that_was_given(monkeypatch):
    monkeypatch.setenv("PET_MASTER_PORT", "29500")
    assert settings().store_port == 29500


def test_exit_codes_are_torchruns_unless_asked_for():
    assert exit_codes.style_of(None, {}) == "torchrun"
    assert exit_codes.style_of(None, {"EVERSTEP_EXIT_CODES": "everstep"}) == "everstep"
    assert exit_codes.style_of("torchrun", {"EVERSTEP_EXIT_CODES": "everstep"}) == "torchrun"
    with pytest.raises(ConfigError, match="must be torchrun or everstep"):
        exit_codes.style_of("bash", {})
    assert [exit_codes.shown(code, "torchrun") for code in (0, 2, 10, 143)] == [0, 1, 1, 1]
    assert [exit_codes.shown(code, "everstep") for code in (0, 2, 10, 143)] == [0, 2, 10, 143]


def test_a_variable_that_its_flag_does_not_take_is_named(monkeypatch):
    monkeypatch.setitem(os.environ, "PET_STANDALONE", "yes")
    with pytest.raises(ConfigError, match="PET_"):
        options.parse(["train.py"])
