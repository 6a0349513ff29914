"""The whole of bench/gpu.py on the CPU, with small states: every part runs to its end, or is skipped by name."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PARTS = [
    "machine,restore,resume",
    "snapshots,digests,two_ranks,overhead,hangs",
    "link,graphs,senses,flight,xid,large",
]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("parts", PARTS)
def test_every_part_is_rehearsed_or_skipped_by_name(parts, tmp_path):
    # Nothing is compiled on the CPU. Of two threads for a product, one has nothing to do but to wait for the other, and
    # spins.
    (tmp_path / "sitecustomize.py").write_text("import uncompiled\n")
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT / 'tests/integration'}", "OMP_NUM_THREADS": "1"}
    line = [sys.executable, str(ROOT / "bench/gpu.py"), "--device", "cpu", "--python", sys.executable]
    line += ["--patience", "8", "--budget", "850", "--only", parts, "--out", str(tmp_path)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=880, env=environment)
    kept = json.loads((tmp_path / "gpu.json").read_text())["parts"]
    assert [part["name"] for part in kept] == parts.split(",")
    for part in kept:
        assert part["state"] in ("done", "skipped"), part
        assert part["state"] == "done" or part["why"], part
        assert part["figures"] or part["why"], part
        for figure in part["figures"]:
            assert "failed" not in figure, figure
            assert figure.get("met") is not False, figure
    assert done.returncode == 0, done.stdout + done.stderr
