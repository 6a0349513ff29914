"""Every bad input of `everstep run`: a clear sentence, the documented exit code, nothing started, nothing lost."""

import os
import socket
import time

import pytest
from real_run import Launcher, launching

from everstep.cli.main import main
from everstep.health.store import Store


@pytest.fixture
def everstep(tmp_path, monkeypatch, capfd):
    """Runs `everstep run` here: none of these may come as far as starting a process. Gives code and stderr."""
    monkeypatch.setenv("EVERSTEP_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("EVERSTEP_EXIT_CODES", "everstep")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("print('trained')\n")
    (tmp_path / "bad.py").write_text("x = 1\nif x\n    pass\n")

    def run(*argv: object) -> tuple[int, str]:
        capfd.readouterr()
        try:
            code = main(["run", *map(str, argv)])
        except SystemExit as usage:  # argparse
            code = int(usage.code or 0)
        out, err = capfd.readouterr()
        assert "Traceback" not in err
        assert "trained" not in out
        return code, err

    return run


@pytest.mark.parametrize(
    ("argv", "code", "words"),
    [
        (["nothing.py"], 2, "script not found: nothing.py"),
        (["bad.py"], 2, "bad.py:2: SyntaxError: expected ':'"),
        (["-m", "no.such.module"], 2, "module no.such.module cannot be found"),
        (["--no-python", "./no-such-command"], 2, "command not found"),
        (["--nproc-per-node", "0", "train.py"], 2, "--nproc-per-node 0: must be at least 1"),
        (["--nproc-per-node", "-1", "train.py"], 2, "--nproc-per-node -1: must be at least 1"),
        (["--nproc-per-node", "two", "train.py"], 2, "must be a number, or one of auto, cpu, gpu"),
        (["--nnodes", "0", "train.py"], 2, "--nnodes '0'"),
        (["--nnodes", "2", "train.py"], 2, "--local-nodes 2"),
        (["--rdzv-backend", "nonsense", "train.py"], 2, "The rendezvous backend 'nonsense' is not registered"),
        (["--mode", "dream", "train.py"], 2, "no mode 'dream'; there are: observe, advise, act"),
        (["--policy", "wild", "train.py"], 2, "no policy 'wild'; there are: conservative, default, aggressive"),
        (["--node-rank", "1", "train.py"], 2, "--nnodes 1:1 is one host. Nothing was started"),
        (["--rdzv-endpoint", "203.0.113.7:29400", "train.py"], 2, "names another machine (203.0.113.7)"),
        (["--no-such-flag", "train.py"], 2, "the following arguments|unrecognized|usage"),
        (["--redirects", "many", "train.py"], 2, "--redirects many"),
        (["--signals-to-handle", "SIGKILL", "train.py"], 2, "'SIGKILL' is not a signal that can be handled"),
        (["--run-dir", "train.py/run", "train.py"], 4, "Choose another with --run-dir"),
        (["--run-dir", "/proc/run", "train.py"], 4, "Choose another with --run-dir"),
        ([], 2, "training_script"),
    ],
)
def test_bad_input(everstep, tmp_path, argv, code, words):
    got, err = everstep(*argv)
    assert got == code, err
    assert any(word in err for word in words.split("|")), err
    assert not list(tmp_path.glob("home/runs/*/journal.jsonl")), "nothing was started"
    is_usage = "usage:" in err  # what the parser refuses
    assert everstep("--exit-codes", "torchrun", *argv)[0] == (2 if is_usage else 1)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_script_that_may_not_be_read(everstep, tmp_path):
    (tmp_path / "train.py").chmod(0)
    code, err = everstep("train.py")
    assert code == 2
    assert "cannot be read: Permission denied" in err


@pytest.mark.parametrize("flag", ["--ui-port", "--master-port"])
def test_a_port_in_use(everstep, flag):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, err = everstep(flag, port, "train.py")
    assert code == 6
    assert f"port {port} on 127.0.0.1 cannot be used: Address already in use. Choose another with {flag}" in err


def test_a_directory_in_use_and_its_run_goes_on(everstep, tmp_path):
    with launching(tmp_path) as launcher:
        run = Launcher.start(launcher, *launcher.loop())
        run.until_step(1)
        spec = (run.run_dir / "spec.json").read_bytes()
        code, err = everstep("--run-dir", run.run_dir, "train.py")
        assert code == 5
        assert "in use by another `everstep run`. Nothing was changed" in err
        assert (run.run_dir / "spec.json").read_bytes() == spec
        run.process.kill()
        run.process.wait()
        run.assert_nothing_left(5.0)
        code, err = everstep("--run-dir", run.run_dir, "--nproc-per-node", 3, "train.py")
        assert code == 2
        assert "world size of 2 (1 nodes x 2), asked for is 3 (1 nodes x 3)" in err
        journal = run.run_dir / "journal.jsonl"
        journal.write_bytes(journal.read_bytes().replace(b'{"v":1', b'{"v":2', 1))
        code, err = everstep("--run-dir", run.run_dir, "--nproc-per-node", 2, "train.py")
        assert code == 4
        assert "schema version 2" in err


def test_a_full_disk(everstep, monkeypatch):
    from everstep.launcher.arguments import checks

    monkeypatch.setattr(checks, "MIN_FREE_BYTES", 1 << 62)
    code, err = everstep("train.py")
    assert code == 4
    assert "MiB free, needed are at least" in err


def test_a_quarantined_machine_is_used_and_said(tmp_path):
    with launching(tmp_path) as launcher:
        Store(tmp_path / "home/nodes.db").quarantine(socket.gethostname(), at=time.time(), why="fan", by="me")
        run = launcher.start(*launcher.loop(3))
        assert run.wait() == 0
        assert "this machine is quarantined (fan)" in run.err(), run.err()
