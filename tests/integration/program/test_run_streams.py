"""What a program reads and writes is the same under torchrun and `everstep run`, byte for byte: from pipes, files and
terminals, whoever reads at the other end.

Each case is one program under both launchers in the same situation. The launchers' own lines are taken off stderr.
"""

import contextlib
import fcntl
import os
import pty
import re
import select
import shlex
import signal
import struct
import subprocess
import sys
import termios
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from real_run import processes_of

TORCHRUN = (sys.executable, "-m", "torch.distributed.run")
TIMEOUT_S = 60.0
EVERSTEP = (sys.executable, "-m", "everstep.cli.main", "run")
BOTH = pytest.mark.parametrize(
    "launcher",
    [pytest.param(TORCHRUN, id="torchrun", marks=pytest.mark.soak), pytest.param(EVERSTEP, id="everstep")],
)
"""What is asked of us is written down, as torchrun does it; that it does is for a new torch to show."""

OURS = re.compile(
    rb"^(?:[WIE]\d{4} |everstep|  \d+ node|\d\d:\d\d:\d\d |  [\d.]+m?s, |  everstep |\s*$).*\n?", re.MULTILINE
)

AFTER_OUR_LINES = "import time; time.sleep(1.5)\n"
"""A line of ours in the middle of one of the program's begins a line of its own, which is no byte of the program's."""

WAIT = """
import os, time
from pathlib import Path
def turn(n):  # each rank after the one before it, without torch
    here = Path(os.environ["TURNS"])
    while n and not (here / str(n - 1)).exists(): time.sleep(0.01)
    return here / str(n)
rank = int(os.environ["RANK"])
"""

PROGRAMS = {
    "writes": (
        "import os, subprocess, sys, time\n"
        "os.write(1, bytes(range(256)) * 20)\n"
        "os.write(2, b'\\xff\\xfe\\x1b[31m\\r\\n.')\n"
        "subprocess.run(['sh', '-c', 'printf out; printf err >&2'])\n"
        "for i in range(20):\n"
        "    sys.stderr.write(f'\\r{i:3d}%|{i * chr(9608)}'); sys.stderr.flush(); time.sleep(0.005)\n"
        "for i in range(30_000): print('line', i, 'x' * 50)\n"
        "sys.stdout.write('last words')\n"
    ),
    "reads": "import os, sys\nprint(os.read(0, 3))\nprint(repr(sys.stdin.read()))",
}


@dataclass
class Ended:
    code: int
    out: bytes
    err: bytes


def environ(folder: Path, **more: str) -> dict[str, str]:
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith(("PET_", "EVERSTEP_"))},
        "EVERSTEP_HOME": str(folder / "home"),
        "EVERSTEP_TEST_DIR": str(folder),
        "EVERSTEP_TWINS": "off",
        "OMP_NUM_THREADS": "1",
        "TURNS": str(folder),
        **more,
    }


def script(folder: Path, text: str) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "program.py"
    path.write_text(text)
    return path


def run(launcher: tuple[str, ...], folder: Path, text: str, *flags: str, stdin: bytes = b"") -> Ended:
    folder.mkdir(exist_ok=True)
    done = subprocess.run(
        [*launcher, *flags, str(script(folder, text))],
        input=stdin,
        capture_output=True,
        env=environ(folder),
        timeout=TIMEOUT_S,
        check=False,
        cwd=folder,
    )
    # everstep begins a line of its own where the program has not ended its last one.
    return Ended(done.returncode, done.stdout, OURS.sub(b"", done.stderr).rstrip(b"\n"))


@pytest.mark.parametrize("name", PROGRAMS)
def test_one_rank_through_pipes_is_the_same_bytes(tmp_path, torchrun, name):
    told = [
        run(launcher, tmp_path / str(n), AFTER_OUR_LINES + PROGRAMS[name], stdin=b"typed\nlines")
        for n, launcher in enumerate((torchrun, EVERSTEP))
    ]
    assert told[0] == told[1]


ALL = pytest.param(("-t", "3"), marks=pytest.mark.soak)


@pytest.mark.parametrize("flags", [("-t", "0:3"), ("-r", "0:1,1:2"), ALL, ("--local-ranks-filter", "1")])
def test_two_ranks_with_flags_show_the_same(tmp_path, torchrun, flags):
    text = WAIT + "mine = turn(rank)\nfor i in range(3): os.write(1, b'line %d of %d\\n' % (i, rank))\nmine.touch()"
    told = [
        run(launcher, tmp_path / str(n), text, "--nproc-per-node", "2", *flags)
        for n, launcher in enumerate((torchrun, EVERSTEP))
    ]
    # The order of the two is torchrun's threads' affair; what is shown and how is not.
    assert sorted(told[0].out.splitlines()) == sorted(told[1].out.splitlines())
    assert told[0].code == told[1].code == 0


def test_both_streams_in_one_pipe_keep_their_order(tmp_path):
    text = "import os\nfor i in range(200): os.write(1 + i % 2, b'%d\\n' % i)"
    done = subprocess.run(
        [*EVERSTEP, str(script(tmp_path, text))],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environ(tmp_path),
        timeout=TIMEOUT_S,
        check=False,
    )
    assert [int(line) for line in done.stdout.splitlines() if line.isdigit()] == list(range(200))


@BOTH
def test_ranks_that_write_in_turn_are_shown_in_turn(tmp_path, launcher):
    text = WAIT + (
        "for i in range(20):\n"
        "    mine = turn(2 * i + 1 - rank)\n"  # rank 1 first: by number it would be the other way round
        "    print(i, rank, flush=True); time.sleep(0.02); mine.touch()\n"
    )
    done = run(launcher, tmp_path, text, "--nproc-per-node", "2")
    assert done.out.split(b"\n") == [b"%d %d" % (i, rank) for i in range(20) for rank in (1, 0)] + [b""]


@BOTH
def test_log_dir_holds_what_was_asked_for_and_no_more(tmp_path, launcher):
    text = "import os, sys\nprint('an apple'); print('a pear'); print('bad', file=sys.stderr)"
    flags = ("-r", "0:2", "-t", "1:1", "--log-dir", str(tmp_path / "logs"), "--duplicate-stdout-filters", "apple")
    assert run(launcher, tmp_path, text, "--nproc-per-node", "2", "--rdzv-id", "job7", *flags).code == 0
    (made,) = (tmp_path / "logs").iterdir()
    assert re.fullmatch(r"job7_\w+" if launcher == EVERSTEP else r".+_\w+", made.name)  # torchrun: not alone
    files = {str(path.relative_to(made)): path.read_text() for path in sorted(made.rglob("*")) if path.is_file()}
    assert files == {
        "attempt_0/0/stderr.log": "bad\n",
        "attempt_0/1/stdout.log": "an apple\na pear\n",
        "attempt_0/filtered_stdout.log": "[default1]:an apple\n",
    }


@BOTH
def test_the_first_rank_that_reads_has_the_line(tmp_path, launcher):
    text = WAIT + "mine = turn(rank)\nimport sys\nprint(rank, repr(sys.stdin.readline())); mine.touch()"
    done = run(launcher, tmp_path, text, "--nproc-per-node", "2", stdin=b"typed line\n")
    assert sorted(done.out.splitlines()) == [b"0 'typed line\\n'", b"1 ''"]


@BOTH
def test_a_reader_that_goes_away_costs_the_program_nothing_it_would_not_have_lost(tmp_path, launcher):
    """`| head -1`. Under torchrun the program gets EPIPE; here it does not even see it."""
    text = "import time\nfrom pathlib import Path\nprint('one', flush=True); time.sleep(1)\n"
    text += "try:\n    print('two', flush=True)\nexcept OSError: pass\nPath('done').touch()"
    with subprocess.Popen(
        [*launcher, str(script(tmp_path, text))],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environ(tmp_path),
        cwd=tmp_path,
    ) as process:
        assert process.stdout.readline() == b"one\n"
        process.stdout.close()
        assert process.wait(TIMEOUT_S) == (0 if launcher == EVERSTEP else process.returncode)
    assert (tmp_path / "done").exists()


def test_a_reader_that_takes_nothing_for_a_while_delays_no_rank_and_loses_nothing(tmp_path):
    text = "from pathlib import Path\nprint('x' * 300_000)\nPath('done').touch()"
    with subprocess.Popen(
        [*EVERSTEP, str(script(tmp_path, text))],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environ(tmp_path),
        cwd=tmp_path,
    ) as process:
        deadline = time.monotonic() + TIMEOUT_S
        while not (tmp_path / "done").exists():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        time.sleep(7)  # past any patience of the launcher's end
        assert process.stdout.read() == b"x" * 300_000 + b"\n"
        assert process.wait(TIMEOUT_S) == 0


@pytest.mark.parametrize("closed", [(1,), (0, 1, 2)])
def test_a_launcher_with_closed_streams_works(tmp_path, closed):
    text = "from pathlib import Path\nprint('x')\nPath('done').touch()"
    command = shlex.join(map(str, (*EVERSTEP, script(tmp_path, text))))
    shell = command + "".join(f" {fd}{'<' if fd == 0 else '>'}&-" for fd in closed)
    done = subprocess.run(["sh", "-c", shell], env=environ(tmp_path), cwd=tmp_path, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0
    assert (tmp_path / "done").exists()


class Screen:
    """A terminal of 111 columns and 33 lines with a launcher in it."""

    def __init__(self, command: list[str], env: dict[str, str], cwd: Path) -> None:
        self.seen = b""
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            with contextlib.suppress(BaseException):
                time.sleep(0.2)  # until the size is set
                os.chdir(cwd)
                os.execve(command[0], command, env)
            os._exit(99)
        self.resize(33, 111)

    def resize(self, lines: int, columns: int) -> None:
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def until(self, what: bytes) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while what not in self.seen:
            assert time.monotonic() < deadline, self.seen
            assert self._read(), self.seen

    def type(self, text: bytes) -> None:
        os.write(self.fd, text)

    def end(self) -> int:
        while self._read():
            pass
        os.close(self.fd)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def _read(self) -> bool:
        if not select.select([self.fd], [], [], TIMEOUT_S)[0]:
            os.kill(self.pid, signal.SIGKILL)
            return False
        try:
            data = os.read(self.fd, 65536)
        except OSError:
            return False
        self.seen += data
        return bool(data)


def screen(launcher: tuple[str, ...], folder: Path, text: str, *flags: str) -> Screen:
    env = environ(folder, TERM="xterm")
    return Screen([*launcher, *flags, str(script(folder, text))], env, folder)


@BOTH
def test_a_rank_at_a_terminal_sees_one(tmp_path, launcher):
    text = (
        "import os, sys\n"
        "print('is', [os.isatty(fd) for fd in range(3)], [tuple(os.get_terminal_size(fd)) for fd in range(3)],"
        " sys.stdout.line_buffering)\n"
    )
    shown = screen(launcher, tmp_path, text)
    assert shown.end() == 0
    assert b"is [True, True, True] [(111, 33), (111, 33), (111, 33)] False\r\n" in shown.seen


@BOTH
def test_a_terminal_that_changes_its_size_is_followed(tmp_path, launcher):
    text = (
        "import os, time\nprint('begun', flush=True)\n"
        "while os.get_terminal_size(1).columns != 77: time.sleep(0.02)\nprint('seen')"
    )
    shown = screen(launcher, tmp_path, text)
    shown.until(b"begun")
    shown.resize(22, 77)
    shown.until(b"seen")
    assert shown.end() == 0


@BOTH
def test_a_breakpoint_at_a_terminal_is_a_prompt(tmp_path, launcher):
    shown = screen(launcher, tmp_path, "x = 41\nbreakpoint()\nprint('after', x)")
    shown.until(b"(Pdb) ")
    shown.type(b"x = 42\n")
    shown.type(b"c\n")
    shown.until(b"after 42")
    assert shown.end() == 0


@BOTH
def test_ctrl_c_at_a_terminal_ends_the_run(tmp_path, launcher):
    shown = screen(launcher, tmp_path, "import time\nprint('begun', flush=True)\ntime.sleep(600)")
    shown.until(b"begun")
    shown.type(b"\x03")
    assert shown.end() not in (0, 99)


def test_more_than_a_terminal_holds_passes_while_the_launcher_is_stopped(tmp_path):
    text = (
        "import time\nfrom pathlib import Path\nprint('begun', flush=True)\n"
        "while not Path('go').exists(): time.sleep(0.02)\n"
        "for i in range(20_000): print('line', i)\nPath('done').touch()"
    )
    shown = screen(EVERSTEP, tmp_path, text)
    shown.until(b"begun")
    os.kill(shown.pid, signal.SIGSTOP)
    (tmp_path / "go").touch()
    deadline = time.monotonic() + TIMEOUT_S
    while not (tmp_path / "done").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.kill(shown.pid, signal.SIGCONT)
    assert shown.end() == 0
    assert shown.seen.count(b"line ") == 20_000


def test_nothing_of_these_runs_is_left(tmp_path):
    assert not processes_of(tmp_path.parent)


def test_the_programs_own_files_may_be_called_like_those_of_the_standard_library(tmp_path):
    for name in ("secrets", "cmd", "queue", "selectors", "dataclasses"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('not the one that you look for')\n")
    command = Path(sys.executable).with_name("everstep")
    done = run((str(command), "run"), tmp_path, "print('done', flush=True)")
    assert (done.code, done.out) == (0, b"done\n"), done.err
