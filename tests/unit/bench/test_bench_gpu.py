"""bench/gpu.py: what it says without a GPU, and that no part can stop the others or take away what is known."""

import json
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "bench"))
import gpu
from gpu_running import interpreter, parts, wheels
from gpu_running.keeping import Keeping, Kept, table
from gpu_running.part import Report

BENCH = Path(gpu.__file__).parent
HEAD = "from gpu_running.part import run, SkipError\ndef main(request, report):\n    "
STAYS = f"time.sleep(600 + {os.getpid()})"
"""Not to be taken for what another run of this test has started."""
SCRIPTS = {
    "good": HEAD + "report.figure('speed', 3.0, 'GB/s', '>= 2.0')\nrun(main)\n",
    "crashing": HEAD + "report.figure('before', 1); import ctypes; ctypes.string_at(0)\nrun(main)\n",
    "raising": HEAD + "report.figure('before', 1); raise ValueError('on purpose')\nrun(main)\n",
    "hanging": HEAD + "report.figure('before', 1); import time; time.sleep(600)\nrun(main)\n",
    "killed": HEAD + "report.figure('before', 1); import os; os.kill(os.getpid(), 9)\nrun(main)\n",
    "stubborn": f"import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', 'import time; {STAYS}'],"
    " start_new_session=True)\n" + HEAD + "report.figure('before', 1); import time; time.sleep(600)\nrun(main)\n",
    "leaving": HEAD + "raise SkipError('it has no link')\nrun(main)\n",
    "last": HEAD + "report.figure('slow', None, 's', '<= 1.0')\nrun(main)\n",
}


COMMAND = """
import json, sys
from pathlib import Path
folder, bench, given, budget = sys.argv[1:]
sys.path.insert(0, bench)
import gpu
from gpu_running import interpreter, parts
parts.FOLDER = Path(folder)
gpu.PARTS = [parts.Part(*each) for each in json.loads(given)]
gpu._choose = lambda args: interpreter.Interpreter(sys.executable, (3, 11, 0), torch="x")
gpu._complete = lambda chosen, args: {"PYTHONPATH": bench}
sys.exit(gpu.main(["--device", "cpu", "--out", folder + "/out", "--budget", budget]))
"""
"""The command with parts of the test's own, without torch."""


def begin(folder: Path, *names: str, limit_s: float = 30.0, on_cpu: str = "", budget: float = 300.0, least_gb=0.0):
    for name, script in SCRIPTS.items():
        (folder / f"{name}.py").write_text(script)
    given = json.dumps([[name, name.title(), limit_s, on_cpu, "", least_gb] for name in names])
    line = [sys.executable, "-c", COMMAND, str(folder), str(BENCH), given, str(budget)]
    return subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


@pytest.fixture
def made(tmp_path):
    def run(*names: str, **how) -> tuple[int, list[dict]]:
        code = begin(tmp_path, *names, **how).wait(120)
        return code, json.loads((tmp_path / "out/gpu.json").read_text())["parts"]

    return run


def test_a_part_that_crashes_raises_or_is_killed_does_not_stop_the_others(made, tmp_path):
    code, found = made("crashing", "raising", "killed", "leaving", "good")
    assert code == 1
    assert [part["state"] for part in found] == ["failed", "failed", "failed", "done", "done"]
    for part in found[:3]:
        assert part["figures"][0]["value"] == 1, "what it knew before stays"
    assert "-11" in found[0]["why"]
    assert found[1]["figures"][1]["failed"] == "ValueError: on purpose"
    assert "ValueError: on purpose" in (tmp_path / "out/gpu.log").read_text()
    assert "-9" in found[2]["why"]
    assert found[3]["figures"][0]["skipped"] == "it has no link"
    assert found[4]["figures"][0]["met"] is True


@pytest.mark.slow
def test_a_part_that_hangs_ends_at_its_limit_with_all_that_it_started(made):
    code, found = made("stubborn", "good", limit_s=8.0)
    assert code == 1
    assert [part["state"] for part in found] == ["out of time", "done"]
    assert found[0]["figures"][0]["value"] == 1
    assert 8.0 <= found[0]["took_s"] < 60.0
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert STAYS not in listed


def test_parts_share_a_budget_and_what_has_no_meaning_is_skipped_by_name(made):
    code, found = made("good", "good", budget=8.5)
    assert found[0]["state"] == "skipped"
    assert "no time left" in found[0]["why"]
    code, found = made("good", on_cpu="there is no link")
    assert (code, found[0]["state"], found[0]["why"]) == (0, "skipped", "there is no link")
    code, found = made("good", least_gb=8.0)
    assert (code, found[0]["state"], found[0]["why"]) == (0, "skipped", "no state of its size is asked for")


def test_a_figure_that_is_not_known_meets_no_goal(made):
    code, found = made("last")
    assert code == 1
    assert found[0]["figures"][0]["met"] is False


def test_a_command_that_is_killed_leaves_what_it_had(tmp_path):
    running = begin(tmp_path, "hanging", limit_s=500.0)
    kept = tmp_path / "out/gpu.json"
    until = time.monotonic() + 90
    while not (kept.exists() and json.loads(kept.read_text())["parts"][0]["figures"]):
        assert time.monotonic() < until
        time.sleep(0.1)
    os.kill(running.pid, signal.SIGKILL)
    running.wait()
    assert json.loads(kept.read_text())["parts"][0]["state"] == "running"
    assert "| Hanging | before | 1 |" in (tmp_path / "out/gpu.md").read_text()


def test_what_the_record_says_stands_in_the_table_also_when_it_is_killed_between(tmp_path, monkeypatch):
    kept = Kept("hanging", "Hanging")
    kept.figures.append({"name": "before", "value": 1, "unit": "", "goal": "", "met": None, "note": ""})
    Keeping(tmp_path, {}, [kept]).write()
    kept.figures[0]["value"] = 2
    replace = Path.replace

    def is_killed_then(path, target):
        replace(path, target)
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", is_killed_then)
    with pytest.raises(KeyboardInterrupt):
        Keeping(tmp_path, {}, [kept]).write()
    (recorded,) = json.loads((tmp_path / "gpu.json").read_text())["parts"]
    assert recorded["figures"][0]["value"] == 1
    assert "| Hanging | before | 2 |" in (tmp_path / "gpu.md").read_text()


def test_without_a_gpu_it_says_so_in_one_line(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(interpreter, "devices_seen", lambda: "")
    assert gpu.main(["--out", str(tmp_path / "out")]) == gpu.NO_GPU
    said = capsys.readouterr()
    assert said.out.count("\n") == 1
    assert said.out.startswith("no GPU: this machine shows none")
    assert not said.err
    assert not (tmp_path / "out").exists()


def test_a_gpu_that_no_torch_sees_is_said_with_every_python_that_was_asked(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(interpreter, "devices_seen", lambda: "/dev/nvidia0")
    monkeypatch.setattr(interpreter, "candidates", lambda: iter([python(tmp_path, "a", devices=0, torch="2.9+cpu")]))
    assert gpu.main(["--wheels", str(tmp_path)]) == gpu.NO_GPU
    said = capsys.readouterr().out
    assert said.count("\n") == 1
    assert "2.9+cpu" in said


def python(folder: Path, name: str, **said) -> str:
    """A program that answers as a Python of that kind would."""
    path = folder / name
    answer = {"python": [3, 12, 3], "torch": "2.11", "cuda": "13.0", "devices": 1, "device": "G", "why": "", **said}
    path.write_text(f"#!/bin/sh\necho noise\necho '{json.dumps(answer)}'\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_the_first_python_whose_torch_sees_a_device_is_taken(monkeypatch, tmp_path):
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\nexit 3\n")
    broken.chmod(0o755)
    found = [
        str(broken),
        python(tmp_path, "none", torch="", devices=0),
        python(tmp_path, "old", python=[3, 9, 1]),
        python(tmp_path, "cpu", devices=0),
        python(tmp_path, "good"),
        python(tmp_path, "other"),
    ]
    monkeypatch.setattr(interpreter, "candidates", lambda: iter(found))
    chosen, asked = interpreter.find()
    assert chosen is not None
    assert chosen.path == str(tmp_path / "good")
    assert len(asked) == 5
    assert asked[0].why
    chosen, _ = interpreter.find(needs_device=False)
    assert chosen is not None
    assert chosen.path == str(tmp_path / "cpu")


def test_what_a_python_lacks_is_brought_as_wheels_or_said(tmp_path):
    assert wheels.missing(sys.executable, "") == []
    why = wheels.install(sys.executable, ["msgspec"], tmp_path, tmp_path / "site")
    assert "lacks msgspec" in why
    assert "make gpu-prefetch" in why
    names = {requirement.partition(">")[0] for requirement in wheels.requirements()}
    assert {"msgspec", "google-re2", "nvidia-ml-py", "py-spy"} <= names


def test_every_part_has_a_script_and_a_place_in_the_page():
    page = (BENCH.parent / "docs/gpu.md").read_text()
    for part in parts.PARTS:
        assert part.script.exists()
        assert f"`{part.name}`" in page
    scripts = {path.stem for path in parts.FOLDER.glob("*.py")} - {"__init__"}
    assert scripts == {part.of or part.name for part in parts.PARTS}


def test_the_table_says_what_was_met_missed_and_not_begun(tmp_path):
    report = Report(tmp_path / "out")
    report.figure("share", 0.25, "share", "<= 0.01", "a | b")
    report.figure("same", True, goal="is true")
    report.figure("count", None)
    report.attempt("broken", lambda: 1 / 0)
    figures = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]
    text = table({"device": "G"}, [Kept("a", "A", state="done", figures=figures), Kept("b", "B")])
    rows = text.splitlines()
    assert rows[4] == "| A | share | 25.00% (a \\| b) | <= 0.01 | **no** |"
    assert rows[5] == "| A | same | yes | is true | yes |"
    assert rows[6] == "| A | count | not known |  |  |"
    assert rows[7] == "| A | broken | **failed**: ZeroDivisionError: division by zero | | |"
    assert rows[8] == "| B | | not begun | | |"
