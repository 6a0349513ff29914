"""A worker process from its link to the end of the user's program.

Called by the bootstrap of a fresh interpreter (`main`) and by the template's forks (`serve`). From the assignment on
both do the same. What is called here sits below the user's program on the stack, so it keeps nothing alive and its
frames are cut out of tracebacks.
"""

import faulthandler
import os
import socket
import sys

from everstep.wire import local
from everstep.worker import assignment as assignments
from everstep.worker import drill, errors, hooks, life, program, relocation
from everstep.worker.assignment import Assignment
from everstep.worker.board import BoardLine, Phase
from everstep.worker.runtime import Runtime, install

EXIT_BAD_ASSIGNMENT = 70


def main() -> None:
    """A fresh interpreter: the link's number and the agent's pid are in the environment."""
    link = socket.socket(fileno=int(os.environ.pop("EVERSTEP_LINK_FD")))
    link.set_inheritable(False)
    if not life.die_with_parent(int(os.environ.pop("EVERSTEP_AGENT_PID"))):
        os._exit(0)
    serve(link)


def serve(link: socket.socket, template_modules: frozenset[str] = frozenset()) -> None:
    """Wait for the assignment and carry it out. Returns or raises as the user's program does. `template_modules` are
    those that a fork came with."""
    received = local.recv(link)
    if received is None:
        os._exit(0)  # parked and not needed any more
    frame, fds = received
    try:
        job = assignments.parse(frame)
        if frame.get("streams"):
            life.take_streams(fds)
        _take_place(job)
        relocation.set_up(frame.get("moved"))
        runtime = _make_runtime(link, frame, job, fds, template_modules)
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
    life.make_output_live()
    os.environ.clear()
    os.environ.update(job.env)
    os.chdir(job.cwd)
    multiprocessing_process = sys.modules.get("multiprocessing.process")
    if multiprocessing_process is not None:
        multiprocessing_process.ORIGINAL_DIR = job.cwd  # type: ignore[attr-defined]  # noted when it was imported
    life.reseed()
    life.restore_blas_threads(job.env)


def _make_runtime(
    link: socket.socket, frame: dict[str, object], job: Assignment, fds: list[int], known: frozenset[str]
) -> Runtime:
    board = BoardLine(fds[0], job.local_rank)
    os.close(fds[0])
    board.set_pid(os.getpid())
    watch_link = socket.socket(fileno=fds.pop()) if frame.get("watch") else None
    siblings = {}
    for rank, count in reversed(assignments.siblings(frame)):  # they come last, in this order
        siblings[rank] = fds[len(fds) - count :]
        del fds[len(fds) - count :]
    runtime = Runtime(link, frame, board, fds[1:])
    runtime.siblings = siblings
    runtime.watch_link = watch_link
    life.allow_look_of(os.getppid())
    runtime.known_modules = known
    install(runtime)
    return runtime


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
    runtime.mark("entered")
    try:
        program.run(job.launch, job.program, job.args)
    except SystemExit:
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
        runtime.board.set_phase(Phase.ENDING)


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
