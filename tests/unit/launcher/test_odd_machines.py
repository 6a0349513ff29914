"""Odd machines and users: no home, small limits, names that are not UTF-8, process 1, text that steers a terminal."""

import io
import os
import resource
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from everstep.agent.main import _home_or
from everstep.cli import main as cli
from everstep.cli import reading
from everstep.controller.record.spec_file import SPEC_NAME, SpecFile, load_spec, save_json
from everstep.core.state.policy import Policy
from everstep.engines.children import Children
from everstep.errors import ConfigError
from everstep.health.store import HealthError, default_path
from everstep.journal import runs
from everstep.launcher import run as launching
from everstep.launcher.arguments import checks, machine
from everstep.launcher.early_signals import EarlySignals
from everstep.launcher.output.terminal import Terminal
from everstep.launcher.run import _cwd
from everstep.launcher.supervise import _encrypted
from everstep.launcher.versions import versions
from everstep.model.spec import Launch, RunSpec
from everstep.report.parts.ansi import Paint, Style, safe

ODD = os.fsdecode(b"donn\xe9es")


@pytest.fixture
def no_home(monkeypatch):
    """A container that runs as any number: no HOME, no passwd entry."""

    def unknown(uid: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    monkeypatch.setattr("pwd.getpwuid", unknown)
    for name in ("HOME", "EVERSTEP_HOME"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("no_home")
def test_a_user_without_a_home_gets_a_sentence_or_a_run(tmp_path):
    with pytest.raises(ConfigError, match=r"no home directory.*--run-dir"):
        runs.home()
    run = runs.new_run_id()
    run_dir = runs.make_run_dir(run, str(tmp_path / "run"))
    assert str(run_dir.path) in runs.register(run, run_dir)
    assert _home_or(tmp_path) == tmp_path / "home"
    with pytest.raises(HealthError):
        default_path()
    assert versions._user_home() is None


@pytest.mark.usefixtures("no_home")
@pytest.mark.parametrize("arguments", [["status"], ["logs"], ["goodput"], ["node", "ls"], ["kb", "unknown"]])
def test_verbs_of_a_user_without_a_home(arguments, capsys):
    assert cli.main(arguments) != 0
    assert "no home directory" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("limits", "words"), [((32, 32), "ulimit -n"), ((32, 4096), ""), ((64, 64), ""), ((4096, 4096), "")]
)
def test_few_open_files(monkeypatch, limits, words):
    had = {resource.RLIMIT_NOFILE: limits, resource.RLIMIT_FSIZE: (-1, -1)}
    monkeypatch.setattr(resource, "getrlimit", had.__getitem__)
    monkeypatch.setattr(resource, "setrlimit", had.__setitem__)
    if words:
        with pytest.raises(ConfigError, match=words):
            machine.check_limits()
    else:
        machine.check_limits()
    soft, hard = had[resource.RLIMIT_NOFILE]
    assert hard == limits[1]
    assert soft == limits[0] if limits[0] >= 64 else soft <= hard, "what is enough is left as it is: ranks inherit it"


def test_small_files(monkeypatch):
    had = {resource.RLIMIT_NOFILE: (1024, 1024), resource.RLIMIT_FSIZE: (8192, -1)}
    monkeypatch.setattr(resource, "getrlimit", had.__getitem__)
    with pytest.raises(ConfigError, match="ulimit -f"):
        machine.check_limits()


def test_what_is_not_seen_as_this_user_is_said_in_one_line(tmp_path):
    readable, missing = tmp_path / "kmsg", tmp_path / "none"
    readable.write_text("")
    assert machine.unseen({"EVERSTEP_KMSG": str(readable)}) == ""
    said = machine.unseen({"EVERSTEP_KMSG": str(missing)})
    assert "kernel log (Xid, MCE, I/O errors)" in said
    assert "\n" not in said
    assert machine.unseen({"EVERSTEP_KMSG": str(missing), "EVERSTEP_SENSING": "off"}) == ""


def test_names_that_are_not_utf8_beside_the_program(tmp_path):
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text("print(1)\n")
    (code / f"{ODD}.csv").write_text("1,2\n")
    (code / f"{ODD}.bin").write_bytes(bytes(2 << 20))
    copy = versions.copy_folder(code, code, tmp_path / "run")
    assert copy.num_files == 2
    assert (Path(copy.code) / f"{ODD}.csv").read_text() == "1,2\n"


def test_a_working_directory_that_is_not_utf8(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert _cwd() == str(tmp_path)
    (tmp_path / ODD).mkdir()
    monkeypatch.chdir(tmp_path / ODD)
    assert _cwd() == "", "agents start where the launcher did"
    wanted = SpecFile(run="r1", spec=RunSpec(program="t.py", code_root=str(tmp_path / ODD)), policy=Policy())
    save_json(tmp_path / SPEC_NAME, wanted)
    assert load_spec(tmp_path).spec.program == "t.py"


def test_a_run_directory_that_is_not_utf8_is_shown_as_it_is(tmp_path, monkeypatch):
    """The first lines name it, and what follows them is a run."""
    folder = os.fsdecode(os.fsencode(tmp_path) + b"/d\xe9")
    monkeypatch.setattr(launching, "header", lambda *_: [f"journal {folder}"])
    told = []

    class Said:
        def __init__(self, *_):
            pass

        def write(self, _, data):
            told.append(data)
            raise KeyboardInterrupt  # what comes next is a run

    monkeypatch.setattr(launching, "Terminal", Said)
    monkeypatch.setattr(launching, "tails_of", lambda *_, **__: [])
    monkeypatch.setattr(launching, "shown", lambda *_: None)
    prepared = SimpleNamespace(path=tmp_path, file=SimpleNamespace(spec=None))
    with socket.socket() as listener, pytest.raises(KeyboardInterrupt):
        launching._supervise(None, prepared, listener, None, None, (), None, EarlySignals())
    assert told == [b"journal " + os.fsencode(folder) + b"\n"]


def test_old_copies_of_a_user_without_a_home_are_none(monkeypatch):
    def nowhere():
        raise ConfigError("no home")

    monkeypatch.setattr(launching, "home", nowhere)
    spec = RunSpec(program="train.py", nproc_per_node=1, code_copy=False)
    launching._beside_the_start(SimpleNamespace(file=SimpleNamespace(spec=spec)), SimpleNamespace(say=print))


def test_a_verb_whose_page_finds_no_room_says_so(monkeypatch, capsys):
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert cli.main(["explain", "ES-P06"]) == 1
    assert "could not be written to standard output: No space left on device" in capsys.readouterr().err


def test_a_program_that_no_message_can_name():
    settings = SimpleNamespace(program="t.py", args=(f"--data={ODD}",), launch=Launch.SCRIPT)
    with pytest.raises(ConfigError, match=r"not UTF-8.*udce9"):
        checks.check_program(settings)


def test_as_process_1_only_marked_processes_are_orphans_of_ours():
    children = Children()
    foreign = subprocess.Popen(["sleep", "60"], env={"PATH": os.environ["PATH"]})
    ours = subprocess.Popen(["sleep", "60"], env={"PATH": os.environ["PATH"], "EVERSTEP_WARD": "x"})
    try:
        limit = time.monotonic() + 60
        while b"sleep" not in Path(f"/proc/{ours.pid}/cmdline").read_bytes() and time.monotonic() < limit:
            time.sleep(0.01)
        assert {foreign.pid, ours.pid} <= set(children.orphans())
        children._pid = 1
        assert ours.pid in children.orphans()
        assert foreign.pid not in children.orphans()
    finally:
        for process in (foreign, ours):
            process.kill()
            process.wait()


def test_the_socket_that_verbs_can_reach_is_announced_first():
    with socket.socket() as first, socket.socket() as second:
        for listener, for_nodes in ((first, second), (second, first)):
            assert _encrypted(listener, for_nodes, is_encrypted=True) == (listener.fileno(), for_nodes.fileno())
            assert _encrypted(listener, for_nodes, is_encrypted=False) == (for_nodes.fileno(),)
        assert _encrypted(first, first, is_encrypted=True) == (first.fileno(),)
        assert _encrypted(first, first, is_encrypted=False) == ()


STEERING = "\x1b]0;owned\x07\x1b[2J\x1b[8mhidden\x1b[31;1m\r\x9b5A\x08\x7f\u202e"


def test_a_page_keeps_our_colours_and_nothing_else():
    style = Style(colour=True)
    ours = style("RUNNING", Paint.BOLD, Paint.RED)
    shown = safe(f"{ours}\t{STEERING}\n")
    assert ours in shown
    rest = shown.replace(ours, "")
    assert all(char.isprintable() or char in "\n\t" for char in rest)
    assert "owned" in rest
    assert safe("plain page\n") == "plain page\n"


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_no_verb_lets_a_job_steer_the_terminal(monkeypatch):
    page, pipe = Screen(), io.StringIO()
    monkeypatch.setattr(sys, "stdout", page)
    reading.show(STEERING)
    reading.show_raw(STEERING)
    assert "\x1b" not in page.getvalue()
    monkeypatch.setattr(sys, "stdout", pipe)
    reading.show(STEERING)
    assert "\x1b" not in pipe.getvalue()
    reading.show_raw(STEERING)
    assert pipe.getvalue().endswith(STEERING), "into a pipe, logs are what ranks wrote"


def test_neither_do_errors_nor_the_lines_of_a_run(monkeypatch, capsys):
    monkeypatch.setitem(cli.VERBS, "odd", ("odd", ""))

    def fail(_verb: str, _arguments: list[str]) -> int:
        raise ConfigError(f"cannot read {STEERING}")

    monkeypatch.setattr(cli, "_run", fail)
    assert cli.main(["odd"]) != 0
    assert "\x1b" not in capsys.readouterr().err
    written: list[bytes] = []
    terminal = Terminal(lambda: [STEERING])
    monkeypatch.setattr(terminal, "write", lambda stream, data: written.append(data))
    terminal._tell()
    assert b"\x1b" not in b"".join(written)
    assert b"owned" in b"".join(written)
