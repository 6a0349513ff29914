"""A real run whose link and API are encrypted: it recovers, takes over and stops as any other."""

import json
import subprocess
import sys
import urllib.error
import urllib.request

import pytest
from real_run import Launcher
from test_run_verbs import verb

from everstep.wire.credentials import CREDENTIALS_NAME


def test_a_run_with_tls_always(launcher: Launcher):
    run = launcher.start("--tls", "always", *launcher.loop())
    run.until_step(1)
    address = json.loads((run.run_dir / "controller.json").read_text())
    assert len(address["fingerprint"]) == 64
    assert f"ui https://127.0.0.1:{address['port']}/" in run.err()
    with pytest.raises((urllib.error.URLError, OSError)):
        urllib.request.urlopen(f"http://127.0.0.1:{address['port']}/api/health", timeout=60)
    killed = verb("drill", "kill-rank", 1, "--run", run.run_dir, run=run)
    assert killed.returncode == 0, killed.stdout + killed.stderr + run.story()
    replaced = verb("drill", "kill-agent", "--run", run.run_dir, run=run)
    assert replaced.returncode == 0, replaced.stdout + replaced.stderr + run.story()
    assert (run.run_dir / "nodes/n1" / CREDENTIALS_NAME).stat().st_mode & 0o777 == 0o600
    nodes = list(run.run_dir.glob(f"nodes/*/{CREDENTIALS_NAME}"))
    keys = {json.loads(path.read_text())["link_key"] for path in nodes}
    assert len(keys) == len(nodes) >= 2, "each node has its own"
    assert verb("stop", run.run_dir, run=run).returncode == 0
    assert run.wait() == 143
    secret = (run.run_dir / "secret").read_text().strip()
    for path in run.run_dir.rglob("*"):
        if path.is_file() and path.suffix in (".log", ".jsonl"):
            text = path.read_text(errors="replace")
            assert secret not in text, path
            assert not any(key in text for key in keys), path


def test_without_openssl_a_run_that_needs_it_does_not_begin(launcher: Launcher, tmp_path):
    (tmp_path / "train.py").write_text("")
    run = launcher.start("--tls", "always", "train.py", env={"PATH": str(tmp_path)})
    assert run.wait() == 2
    assert "the program openssl, which is not installed here" in run.err()
    assert not run.journal.exists()


def test_another_word_is_refused(tmp_path):
    argv = [sys.executable, "-m", "everstep.cli.main", "run", "--tls", "never", "x.py"]
    answer = subprocess.run(argv, capture_output=True, text=True, timeout=60, cwd=tmp_path, check=False)
    assert answer.returncode == 1
    assert "must be auto or always" in answer.stderr
