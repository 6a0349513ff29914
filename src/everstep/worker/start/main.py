"""A worker process that is not a program run natively (`parking.begin`): commands, `--run-path`, moved modules, and
examinations of ours. It waits for its assignment, then becomes or runs what that says.

What is called here sits below the program on the stack, so it keeps nothing alive and its frames are cut out of
tracebacks.
"""

import faulthandler
import os
import socket
import sys
import time
from typing import TYPE_CHECKING, cast

from everstep.linux import parent
from everstep.wire import local
from everstep.worker.drills import drill
from everstep.worker.hooks import hooks
from everstep.worker.link import assignment as assignments
from everstep.worker.link.assignment import Assignment
from everstep.worker.link.runtime import Runtime, install
from everstep.worker.process import errors, life, relocation
from everstep.worker.start import ending, installing, program

if TYPE_CHECKING:
    from everstep.wire.frames import Assign

EXIT_BAD_ASSIGNMENT = 70


def main() -> None:
    """A fresh interpreter: the link's number and the agent's pid are in the environment."""
    link = socket.socket(fileno=int(os.environ.pop("EVERSTEP_LINK_FD")))
    link.set_inheritable(False)
    if not parent.die_with_parent(int(os.environ.pop("EVERSTEP_AGENT_PID"))):
        os._exit(0)
    serve(link)


def serve(link: socket.socket) -> None:
    """Wait for the assignment and carry it out. Returns or raises as the program does."""
    received = local.recv(link)
    if received is None:
        os._exit(0)  # not needed any more
    frame, fds = cast("Assign", received[0]), received[1]
    try:
        job = assignments.parse(frame)
        if frame.get("streams"):
            life.take_streams(fds)
        _take_place(job)
        relocation.set_up(frame.get("moved"))
        runtime = installing.fill(None, link, frame, fds, job.local_rank)
        install(runtime)
    except (assignments.AssignmentError, OSError, IndexError) as error:
        print(f"everstep: this rank cannot start: {error}", file=sys.stderr)  # noqa: T201
        sys.exit(EXIT_BAD_ASSIGNMENT)
    del frame, fds, received
    if job.launch == "command":
        _become_command(job, runtime)
    else:
        _run_program(job, runtime)


def _take_place(job: Assignment) -> None:
    """Be the process that the user expects: output, folder, environment."""
    if job.stdout:
        life.redirect(job.stdout, 1)
    if job.stderr:
        life.redirect(job.stderr, 2)
    os.environ.clear()
    os.environ.update(job.env)
    os.chdir(job.cwd)


def _become_command(job: Assignment, runtime: Runtime) -> None:
    runtime.mark("entered")
    try:
        program.execute(job.program, job.args, job.env)
    except program.ProgramNotFound as error:
        _end_not_found(job, runtime, error)


def _run_program(job: Assignment, runtime: Runtime) -> None:
    if not faulthandler.is_enabled():
        faulthandler.enable()  # a crash in native code leaves Python's stacks on stderr
    drill.install(runtime)
    hooks.install(runtime)
    ending.let_go_last()
    runtime.mark("entered")
    mine = os.getpid()
    finished = False
    try:
        program.run(job.launch, job.program, job.args)
        finished = True
    except SystemExit as ended:
        finished = not errors.is_failure(ended)
        if not finished and os.getpid() == mine:  # not a child that the program forked
            _report(job, runtime, ended)
        raise
    except program.ProgramNotFound as error:
        _end_not_found(job, runtime, error)
    except BaseException as error:
        _report(job, runtime, error)
        errors.tell(error)
        # The interpreter ends the process as it always does (code 1, or SIGINT's death), and has nothing left to say.
        sys.excepthook = lambda *_: None
        raise
    finally:
        runtime.board.set_over(time.time(), finished=finished)


def _report(job: Assignment, runtime: Runtime, error: BaseException) -> None:
    try:
        errors.report_exception(job.error_file, error)
    except Exception as ours:
        runtime.report_fault("error report", f"{type(ours).__name__}: {ours}")


def _end_not_found(job: Assignment, runtime: Runtime, error: program.ProgramNotFound) -> None:
    try:
        errors.write_report(job.error_file, kind=type(error).__name__, message=str(error))
    except OSError as ours:
        runtime.report_fault("error report", f"{type(ours).__name__}: {ours}")
    print(f"{sys.executable}: {error}", file=sys.stderr)  # noqa: T201
    sys.exit(error.exit_code)
