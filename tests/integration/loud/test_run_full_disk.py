"""What ranks print needs no room on a disk, no agent and no reader: nothing of it ends or holds up a rank, and what can
be kept is in the log files."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from real_run import Launcher, Run

from everstep.linux.parent import WARDEN

PRINTS = """
import os, sys, time
from pathlib import Path
rank, told = os.environ["RANK"], Path(sys.argv[1])
for step in range(100_000):
    print("step", step, "x" * 2000, flush=True)
    (told / f"{os.environ['EVERSTEP_GENERATION']}-{rank}").write_text(str(step))
    if (told / "stop").exists() or (os.environ["EVERSTEP_GENERATION"] == "1" and step == 5):
        break
    time.sleep(0.01)
"""


@pytest.fixture
def small(launcher: Launcher) -> Iterator[Path]:
    """A file system of 32 MiB."""
    folder = launcher.folder / "small"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=32m", "none", folder], check=True)
    try:
        yield folder
    finally:
        launcher.close()
        subprocess.run(["umount", "--lazy", folder], check=True)


def fill(folder: Path) -> Path:
    with contextlib.suppress(OSError), (folder / "filler").open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)
    return folder / "filler"


def done(folder: Path, generation: int = 0) -> list[int]:
    """The last step that each rank has printed."""
    return [int(text) for path in sorted(folder.glob(f"{generation}-*")) if (text := path.read_text())]


def printed(run: Run, rank: int, generation: int = 0) -> list[int]:
    text = (run.run_dir / f"logs/gen-{generation}/rank-{rank}/stdout.log").read_text()
    return [int(line.split()[1]) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def wrote(run: Run, rank: int) -> bool:
    """Whether the log file has some of what it printed: it comes there a little later."""
    with contextlib.suppress(FileNotFoundError):
        return len(printed(run, rank)) > 10
    return False


@pytest.mark.root
def test_a_disk_that_is_full_for_a_while_costs_nothing(launcher: Launcher, small: Path):
    told = launcher.folder / "told"
    told.mkdir()
    run = launcher.start("--nproc-per-node", 2, launcher.script(PRINTS), told, run_dir="small/run")
    run.until("both have begun", lambda: len(done(told)) == 2 and all(wrote(run, rank) for rank in (0, 1)))
    filler = fill(small)
    before = done(told)
    run.until("both go on", lambda: all(step > max(before) + 300 for step in done(told)))
    assert max(printed(run, 0)) < max(before) + 300, "the disk had room"
    run.until("the terminal says why it is silent", lambda: f"the disk of {run.run_dir} is full" in run.err())
    filler.unlink()
    run.until("what was kept is written", lambda: all(max(printed(run, rank)) > max(before) + 300 for rank in (0, 1)))
    run.until("the terminal says so", lambda: f"the disk of {run.run_dir} has room again" in run.err())
    assert run.err().count("the disk of") == 2
    (told / "stop").touch()
    assert run.wait() == 0, run.story()
    assert not done(told, generation=1)
    for rank, last in enumerate(done(told)):
        assert printed(run, rank) == list(range(last + 1))


def test_what_ranks_printed_before_their_agent_died_is_kept(launcher: Launcher):
    told = launcher.folder / "told"
    told.mkdir()
    run = launcher.start("--nproc-per-node", 2, launcher.script(PRINTS), told)
    run.until("both have begun", lambda: len(done(told)) == 2 and min(done(told)) > 10)
    os.kill(run.agent_pid(), signal.SIGSTOP)  # it takes nothing out of memory any more
    before = done(told)
    run.until("both go on", lambda: all(step > max(before) + 20 for step in done(told)))
    os.kill(run.agent_pid(), signal.SIGKILL)
    assert run.wait() == 0, run.story()
    for rank, last in enumerate(done(told)):
        assert printed(run, rank)[: last + 1] == list(range(last + 1))


LEAVES = """
( sleep 2; while [ ! -e "$1/stop" ]; do echo late; sleep 0.1; done ) &
echo early
"""


def test_what_a_rank_left_running_prints_is_kept_when_the_run_is_over(launcher: Launcher):
    run = launcher.start("--no-python", "sh", launcher.script(LEAVES, "leaves.sh"), launcher.folder)
    assert run.wait() == 0, run.story()
    log = run.run_dir / "logs/gen-0/rank-0/stdout.log"
    deadline = time.monotonic() + 60
    while log.read_text().count("late\n") < 10:
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.05)
    assert WARDEN not in run.err(), "what is ours is not the user's"
    (launcher.folder / "stop").touch()
