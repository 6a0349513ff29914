"""What torchrun's user counts on, with real processes: how often it is tried, with which code it ends, which signal the
ranks get and how long they have, and what they are told."""

import json
import os
import re
import signal
import subprocess

import pytest
from real_run import Launcher, launching

from everstep.launcher.arguments.torch_parts import part
from everstep.model.actions import IncidentClosed, StartWorkers

FLAGS = {action.dest: action.default for action in part("torch.distributed.run", "get_args_parser")()._actions}
TORCHRUN = {"EVERSTEP_EXIT_CODES": "torchrun"}

ENDS = """
import os, signal, sys, time, ctypes
print("try", os.environ["TORCHELASTIC_RESTART_COUNT"], flush=True)
how = sys.argv[1]
def fail():
    if how == "raise": raise KeyError("labels")
    if how == "exit": sys.exit(3)
    if how == "text": sys.exit("no data")
    if how == "now": os._exit(4)
    if how == "segv": ctypes.string_at(0)
    if how == "kill": os.kill(os.getpid(), signal.SIGKILL)
    if how == "usage":
        import argparse
        argparse.ArgumentParser().parse_args(["--lrr", "3"])
fail()
"""

HEARS = """
import os, signal, sys, time
def heard(number, frame):
    print("GOT", signal.Signals(number).name, flush=True)
    time.sleep(float(sys.argv[1]))
    print("SAVED", flush=True)
    sys.exit(0)
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1):
    signal.signal(number, heard)
print("step 0", flush=True)
while True:
    time.sleep(0.05)
"""


def soak(*cases: str) -> list[object]:
    """Ways to end are told apart, and restarts counted, in tests/unit/analyzer/test_exits.py and the scenarios."""
    return [pytest.param(case, marks=pytest.mark.soak) for case in cases]


@pytest.fixture
def launcher(tmp_path):
    with launching(tmp_path) as made:
        yield made


def tries(run) -> int:
    return run.out().count("try ")


@pytest.mark.parametrize("how", ["raise", "segv", *soak("exit", "text", "now", "kill")])
def test_what_fails_at_once_is_tried_twice(launcher: Launcher, how):
    run = launcher.start(launcher.script(ENDS), how, env=TORCHRUN)
    assert run.wait() == 1
    assert tries(run) == 2, run.story()
    assert "before the first step" in run.err()
    assert not [each for each in run.actions(IncidentClosed) if each.outcome == "recovered"]


def test_arguments_that_the_program_refuses_are_tried_once(launcher: Launcher):
    run = launcher.start(launcher.script(ENDS), "usage", env=TORCHRUN)
    assert run.wait() == 1
    assert tries(run) == 1, run.story()
    assert "unrecognized arguments: --lrr 3" in run.err()
    assert "the program refuses its arguments" in run.err()


@pytest.mark.parametrize("how", ["exit", "usage", *soak("raise", "segv")])
def test_max_restarts_is_the_users_word(launcher: Launcher, how):
    run = launcher.start("--max-restarts", 4, launcher.script(ENDS), how, env=TORCHRUN)
    assert run.wait() == 1
    assert tries(run) == 5, run.story()


def test_no_restart_means_none(launcher: Launcher):
    run = launcher.start("--max-restarts", 0, launcher.script(ENDS), "raise", env=TORCHRUN)
    assert run.wait() == 1
    assert tries(run) == 1


@pytest.mark.parametrize("name", ["SIGINT", "SIGUSR1", *soak("SIGTERM", "SIGHUP", "SIGQUIT")])
def test_ranks_get_the_signal_that_the_launcher_got(launcher: Launcher, name):
    signals = "SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1"
    run = launcher.start(
        "--nproc-per-node", 2, "--signals-to-handle", signals, launcher.script(HEARS), 0.2, env=TORCHRUN
    )
    run.until_step(0)
    run.process.send_signal(getattr(signal, name))
    assert run.wait() == 1
    for rank in (0, 1):
        heard = (run.run_dir / f"logs/gen-0/rank-{rank}/stdout.log").read_text()
        assert heard.splitlines()[-2:] == [f"GOT {name}", "SAVED"], run.story()


def test_a_rank_has_torchruns_time_to_save(launcher: Launcher):
    """Longer than the grace of a restart."""
    run = launcher.start(launcher.script(HEARS), 7.0)
    run.until_step(0, world_size=1)
    run.process.send_signal(signal.SIGTERM)
    assert run.wait() == 143
    assert "SAVED" in run.out(), run.story()


with_its_flag = pytest.mark.skipif(
    "shutdown_timeout" not in FLAGS, reason="torchrun has --shutdown-timeout since torch 2.13"
)


@pytest.mark.parametrize("flags", [pytest.param(["--shutdown-timeout", "1"], marks=with_its_flag), []])
def test_the_time_to_save_is_what_the_user_says(launcher: Launcher, flags):
    env = {} if flags else {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "1"}
    run = launcher.start(*flags, launcher.script(HEARS), 600, env=env)
    run.until_step(0, world_size=1)
    run.process.send_signal(signal.SIGTERM)
    assert run.wait(25) == 143
    assert "SAVED" not in run.out()


EARLIER = FLAGS["master_port"] is not None
"""Before torch 2.13 torchrun's ranks met at 127.0.0.1:29500 where no port was given, and everstep's at a free one."""


def without_a_port(*flags: str):
    return pytest.param(flags, marks=pytest.mark.skipif(EARLIER, reason="torchrun's own port until torch 2.13"))


TOLD = """
import json, os, sys
names = sorted(n for n in os.environ if n.startswith(("TORCHELASTIC", "MASTER", "LOCAL", "GROUP", "ROLE", "CUDA_VIS")))
names += ["RANK", "WORLD_SIZE", "OMP_NUM_THREADS"]
sys.stdout.write("told " + json.dumps([{n: os.environ.get(n) for n in names}, sys.argv[1:]]) + "\\n")
"""


@pytest.mark.parametrize(
    "flags",
    [
        without_a_port(),
        ("--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", "--rdzv-id", "job 7"),
        ("--master-port", "{port}", "--max-restarts", "3"),
        without_a_port("--local-addr", "127.0.0.3", "--role", "trainer"),
        ("--standalone", "--virtual-local-rank", "--signals-to-handle", "SIGTERM"),
    ],
)
def test_ranks_are_told_what_torchrun_tells_them(launcher: Launcher, torchrun: tuple[str, ...], flags):
    """Equal, but for what is different in each run: the port, the UUID, the name of the error file."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    argv = ("--nproc-per-node", "2", *(flag.format(port=port) for flag in flags), launcher.script(TOLD))
    words = ("a$$b", "${local_rank}", "$x", "--nnodes")
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": "4,5"}
    theirs = subprocess.run(
        [*torchrun, *map(str, argv), *words],
        capture_output=True, env=env, timeout=120, check=False, cwd=launcher.folder,
    ).stdout.decode()  # fmt: skip
    run = launcher.start(*argv, *words, env={"CUDA_VISIBLE_DEVICES": "4,5"})
    assert run.wait() == 0, run.story()
    assert _told(run.out(), is_port_free="{port}" not in flags) == _told(theirs, is_port_free="{port}" not in flags)


def _told(text: str, *, is_port_free: bool) -> list[object]:
    found = [json.loads(line.split("told ", 1)[1]) for line in text.splitlines() if "told " in line]
    for env, _ in found:
        del env["TORCHELASTIC_ERROR_FILE"]
        if is_port_free:
            del env["MASTER_PORT"]
        env["TORCHELASTIC_RUN_ID"] = re.sub(
            r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "UUID", env["TORCHELASTIC_RUN_ID"]
        )
    assert len(found) == 2, text
    return sorted(found, key=lambda each: each[0]["RANK"])


def test_the_port_stays_over_restarts(launcher: Launcher):
    script = launcher.script(
        """
import os, sys, uncompiled, torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()
print("port", os.environ["MASTER_PORT"], flush=True)
if int(os.environ["TORCHELASTIC_RESTART_COUNT"]) < 1:
    if dist.get_rank() == 1: os._exit(1)
    dist.barrier()
"""
    )
    run = launcher.start("--nproc-per-node", 2, "--max-restarts", 1, script)
    assert run.wait() == 0, run.story()
    ports = re.findall(r"port (\d+)", run.out())
    assert len(ports) >= 3, run.out()
    assert len(set(ports)) == 1, run.out()
    assert len({start.store_port for start in run.actions(StartWorkers)}) == 1


def test_the_launchers_error_file_has_the_report_of_the_rank_that_failed(launcher: Launcher):
    script = launcher.script(
        "import os, time\nif os.environ['RANK'] == '1': raise KeyError('labels')\ntime.sleep(60)\n"
    )
    path = launcher.folder / "error.json"
    flags = ("--nproc-per-node", 2, "--max-restarts", 0)
    run = launcher.start(*flags, script, env={**TORCHRUN, "TORCHELASTIC_ERROR_FILE": str(path)})
    assert run.wait() == 1
    report = json.loads(path.read_text())
    assert report["message"]["message"] == "KeyError: 'labels'"
    assert report["message"]["errorCode"] == 1
    assert "train.py" in report["message"]["extraInfo"]["py_callstack"]


def test_a_compiled_script_runs(launcher: Launcher):
    import py_compile

    made = py_compile.compile(str(launcher.script("print('step 0')\n")), cfile=str(launcher.folder / "plain.pyc"))
    run = launcher.start(made)
    assert run.wait() == 0, run.story()
    assert "step 0" in run.out()
