"""A process that a signal ends after its program's last line: the work is done, and is not done a second time."""

from collections.abc import Callable

import pytest
from real_run import Launcher, Run

from everstep.errors import EXIT_GAVE_UP
from everstep.model.actions import Finish, IncidentClosed
from everstep.model.events import WorkersStarted

ENDS = """
import atexit, os, sys, time
from everstep.worker.link.runtime import current
current()  # as torch does when it is imported
rank, generation = os.environ["RANK"], os.environ["EVERSTEP_GENERATION"]
if rank == "1" and generation == "0":
    atexit.register(os.abort)
else:
    time.sleep(1.0)  # it has something to do when the other one is gone
print("work done", flush=True)
if sys.argv[1] == "raises" and generation == "0":
    raise ValueError("no work was done")
"""


Start = Callable[[str], Run]


@pytest.fixture(params=["file", "module"])
def start(launcher: Launcher, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Start:
    """The program begins natively, or is run by us."""
    script = launcher.script(ENDS, "ends.py")
    monkeypatch.setenv("PYTHONPATH", str(script.parent), prepend=":")
    program = ("-m", "ends") if request.param == "module" else (script,)
    return lambda how: launcher.start("--nproc-per-node", 2, *program, how)


def generations(run):
    return sorted({event.generation for event in run.events(WorkersStarted)})


def test_its_work_is_not_done_again(start: Start) -> None:
    run = start("ends")
    assert run.wait() == EXIT_GAVE_UP, run.story()
    assert generations(run) == [0], run.story()
    (finish,) = run.actions(Finish)
    assert "every rank's program was over before, without a traceback" in finish.why
    assert "rank 1 on n0 was killed by SIGABRT" in finish.why
    assert "work done" in (run.run_dir / "logs/gen-0/rank-0/stdout.log").read_text()
    assert [closed.outcome for closed in run.actions(IncidentClosed)] == ["gave-up"]
    run.assert_nothing_left()


def test_after_an_exception_it_is_an_ordinary_fault(start: Start) -> None:
    run = start("raises")
    assert run.wait() == 0, run.story()
    assert generations(run) == [0, 1], run.story()
