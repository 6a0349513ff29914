"""Other launchers' command lines: recognized by name, read by their own code, and refused before anything starts."""

import json
import shlex
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from everstep.errors import ConfigError
from everstep.launcher.arguments import options
from everstep.launcher.arguments.settings import resolve
from everstep.launcher.foreign.asking import Ended
from everstep.launcher.foreign.line import UNSET
from everstep.launcher.foreign.recognizing import Called, recognize
from everstep.launcher.foreign.translating import translate
from everstep.model.spec import Launch

BIN = Path(sys.executable).parent
OLD = "python -m torch.distributed.launch"
TORCHRUN = Called("torchrun", ("x.py",))


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(BIN), prepend=":")
    monkeypatch.setenv("HF_HOME", str(tmp_path))  # the config file of whoever runs the tests


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("torchrun x.py", TORCHRUN),
        (f"'{BIN}/torchrun' x.py", TORCHRUN),
        ("python -m torch.distributed.run x.py", TORCHRUN),
        ("python3 -u -X dev -m torch.distributed.run x.py", TORCHRUN),
        ("python -m torch.distributed.launch x.py", Called("torch.distributed.launch", ("x.py",))),
        ("accelerate launch x.py", Called("accelerate", ("x.py",))),
        ("accelerate-launch x.py", Called("accelerate", ("x.py",))),
        ("python -m accelerate.commands.launch x.py", Called("accelerate", ("x.py",))),
        ("deepspeed x.py", Called("deepspeed", ("x.py",))),
        ("python -m deepspeed.launcher.runner x.py", Called("deepspeed", ("x.py",))),
        ("python x.py", None),
        ("python -m x", None),
        ("python", None),
        ("python -m", None),
        ("train.py torchrun", None),
        ("/elsewhere/torchrun.py x.py", None),
    ],
)
def test_launchers_are_known_by_name(words, expected):
    program, *args = shlex.split(words)
    assert recognize(program, args, is_module=False) == expected


@pytest.mark.parametrize("module", ["torch.distributed.run", "deepspeed", "accelerate.commands.launch", "mine"])
def test_modules_that_are_launchers_are_known(module):
    assert (recognize(module, ["x.py"], is_module=True) is None) == (module == "mine")


@pytest.mark.parametrize("name", ["torchrun", "deepspeed", "accelerate", "python"])
def test_a_script_with_a_launchers_name_is_a_script(name):
    Path(name).write_text("print('mine')")
    assert recognize(name, ["launch", "x.py"], is_module=False) is None


def test_a_directory_with_a_launchers_name_is_no_program_unless_python_runs_it():
    Path("deepspeed").mkdir()
    assert recognize("deepspeed", ["x.py"], is_module=False) is not None
    Path("deepspeed/__main__.py").write_text("")
    assert recognize("deepspeed", ["x.py"], is_module=False) is None


def test_a_launcher_of_another_environment_is_refused(tmp_path, monkeypatch):
    other = tmp_path / "bin/torchrun"
    other.parent.mkdir()
    other.write_text("#!/bin/sh\n")
    other.chmod(0o755)
    monkeypatch.setenv("PATH", str(other.parent))
    monkeypatch.setattr(sys, "prefix", "/a/venv")
    with pytest.raises(ConfigError, match=str(other)):
        recognize("torchrun", ["x.py"], is_module=False)


def test_only_accelerates_launch_starts_a_training():
    with pytest.raises(ConfigError, match="accelerate launch"):
        recognize("accelerate", ["config"], is_module=False)


def soak(*cases: str) -> list[object]:
    """Each one imports torch and accelerate."""
    return [pytest.param(case, marks=pytest.mark.soak) for case in cases]


def translated_from(words: str):
    return translate(words.split(), {})


def same_as_direct(launcher: str, direct: str):
    """Settings of `everstep run LAUNCHER ...`, after a check that they are those of a line without a launcher."""
    environ: dict[str, str] = {}
    translated = translate(launcher.split(), environ)
    expected = resolve(options.parse(direct.split()), {})
    found = resolve(translated.given, {})
    assert (found.program, found.args, found.launch) == (expected.program, expected.args, expected.launch)
    assert vars(translated.given) == vars(options.parse(direct.split()))
    return translated, environ


@pytest.mark.parametrize(
    ("launcher", "direct"),
    [
        ("torchrun --nproc-per-node 2 x.py --lr 3", "--nproc-per-node 2 x.py --lr 3"),
        ("--standby 1 torchrun --nproc_per_node=2 x.py", "--standby 1 --nproc-per-node 2 x.py"),
        ("torchrun --nproc-per-node 2 -m pack.train a", "--nproc-per-node 2 -m pack.train a"),
        ("-m torch.distributed.run --nproc-per-node 2 x.py", "--nproc-per-node 2 x.py"),
        (f"{OLD} --nproc-per-node 2 x.py a", "--nproc-per-node 2 x.py --local-rank=${local_rank} a"),
        (f"{OLD} --use_env --nproc-per-node 2 x.py a", "--nproc-per-node 2 x.py a"),
        ("torchrun x.py torchrun --nproc-per-node 2", "x.py torchrun --nproc-per-node 2"),
        ("train.py accelerate launch", "train.py accelerate launch"),
    ],
)
def test_torchruns_own_line_means_what_it_means_without_its_name(launcher, direct):
    translated, environ = same_as_direct(launcher, direct)
    assert (translated.unset, environ) == ((), {})


def test_flags_before_the_launcher_win_and_that_is_said():
    translated = translated_from("--nproc-per-node 1 torchrun --nproc-per-node 2 --max-restarts 3 x.py")
    assert translated.given.nproc_per_node == "1"
    assert translated.given.max_restarts == 3
    assert len(translated.notes) == 2


def test_flags_that_agree_are_no_conflict():
    translated = translated_from("--nproc-per-node 2 torchrun --nproc-per-node 2 x.py")
    assert len(translated.notes) == 1


def test_accelerates_ranks_get_its_variables_and_its_port():
    words = "--multi_gpu --num_processes 2 --num_machines 1 --mixed_precision bf16 --main_process_port 29533"
    direct = "--nproc-per-node 2 --master-port 29533 x.py --a $HOME"
    translated, environ = same_as_direct(f"accelerate launch {words} x.py --a $HOME", direct)
    assert environ["ACCELERATE_MIXED_PRECISION"] == "bf16"
    assert translated.unset == ()


def test_accelerates_config_file_is_read_by_accelerate():
    config = {"compute_environment": "LOCAL_MACHINE", "distributed_type": "FSDP", "mixed_precision": "bf16"}
    config |= {"num_processes": 2, "num_machines": 1, "machine_rank": 0, "main_process_port": 29534}
    config |= {"fsdp_config": {"fsdp_version": 2, "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP"}}
    Path("fsdp.json").write_text(json.dumps(config))
    words = "accelerate launch --config_file fsdp.json -m pack.train"
    _, environ = same_as_direct(words, "--nproc-per-node 2 --master-port 29534 -m pack.train")
    assert environ["ACCELERATE_USE_FSDP"] == "true"
    assert environ["FSDP_VERSION"] == "2"
    assert environ["FSDP_AUTO_WRAP_POLICY"] == "TRANSFORMER_BASED_WRAP"


ONE = "accelerate launch --cpu --num_processes 1 --num_machines 1 --mixed_precision no --dynamo_backend no"


def test_one_process_of_accelerates_is_no_rank():
    translated, environ = same_as_direct(f"{ONE} x.py $HOME", "--nproc-per-node 1 x.py $$HOME")
    assert translated.unset == UNSET["one process"]
    assert environ["ACCELERATE_USE_CPU"] == "True"


@pytest.mark.soak
def test_one_process_of_accelerates_that_is_made_several_is_a_rank():
    translated = translated_from(f"--nproc-per-node 2 {ONE} x.py")
    assert translated.unset == ()
    assert translated.given.nproc_per_node == "2"


@pytest.mark.parametrize(
    "flags", ["--tpu --num_processes 2", *soak("--multi_gpu --num_processes 1", "--multi_gpu --cpu")]
)
def test_what_accelerate_or_everstep_cannot_do_is_refused(flags):
    with pytest.raises(ConfigError, match=r"accelerate launch: .*Nothing was started"):
        translated_from(f"accelerate launch --num_machines 1 {flags} x.py")


@pytest.mark.soak
def test_a_flag_that_accelerate_does_not_know_ends_as_with_accelerate(capfd):
    with pytest.raises(Ended) as caught:
        translated_from("accelerate launch --nonsense x.py")
    assert caught.value.code == 2
    assert "--nonsense" in capfd.readouterr().err


def test_commands_and_paths_are_left_alone():
    translated = translated_from("--no-python accelerate launch x.py")
    assert resolve(translated.given, {}).launch is Launch.COMMAND
    assert translated.given.training_script == "accelerate"


has_deepspeed = pytest.mark.skipif(find_spec("deepspeed") is None, reason="DeepSpeed is not installed")
DEEPSPEED = "--rdzv-backend static --master-addr 127.0.0.1 --master-port 29500"


@has_deepspeed
@pytest.mark.parametrize(
    ("launcher", "direct"),
    [
        ("--num_gpus 2 x.py --a $HOME", "x.py --local_rank=${local_rank} --a $$HOME"),
        ("--num_gpus 2 --no_local_rank --module pack.train", "-m pack.train"),
    ],
)
def test_deepspeeds_ranks_get_their_number_and_its_variables(launcher, direct):
    translated, environ = same_as_direct(f"deepspeed {launcher}", f"--nproc-per-node 2 {DEEPSPEED} {direct}")
    assert translated.unset == UNSET["bare ranks"]
    assert environ["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert environ["LOCAL_SIZE"] == "2"


@has_deepspeed
@pytest.mark.parametrize("flags", ["--hostfile hosts", "--hostfile hosts --launcher slurm", "--autotuning run"])
def test_what_deepspeed_would_do_on_other_hosts_is_refused(flags):
    Path("hosts").write_text("alpha slots=2\nbeta slots=2\n")
    with pytest.raises(ConfigError, match=r"deepspeed: .*Nothing was started"):
        translated_from(f"deepspeed {flags} x.py")


@has_deepspeed
def test_one_host_of_deepspeeds_hostfile_is_a_node():
    Path("hosts").write_text("alpha slots=2\nbeta slots=2\n")
    words = "deepspeed --hostfile hosts --no_ssh --node_rank 1 --master_addr 203.0.113.7 x.py"
    given = translate(words.split(), {}).given
    assert (given.nnodes, given.node_rank, given.master_addr, given.nproc_per_node) == ("2", 1, "203.0.113.7", "2")
