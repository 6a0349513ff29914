"""Runs the user's program the way the interpreter itself would: `python script.py`, `python -m module`, a path, or an
executable.

The program gets a real `__main__` module (pickling and multiprocessing's spawn look at it), its own `sys.argv` and
`sys.path[0]`, and the ends it is used to: SystemExit, a traceback, KeyboardInterrupt. `run` is called once, by
`worker.start.main`, at the bottom of the process's stack; whatever it raises goes to the interpreter.
"""

import importlib.machinery
import io
import os
import pkgutil
import runpy
import sys
import types
from collections.abc import Callable
from typing import NoReturn

from everstep.worker.process import relocation

EXIT_NOT_EXECUTABLE = 126
EXIT_NOT_FOUND = 127


class ProgramNotFound(Exception):  # noqa: N818 - its name is the kind of the error report
    """There is no such script or executable. `exit_code` is what a shell or the interpreter would end with."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def run(launch: str, program: str, args: tuple[str, ...]) -> None:
    """Run the program to its end. Raises ProgramNotFound, and whatever the program raises."""
    _launchers[launch](program, args)


def execute(program: str, args: tuple[str, ...], env: dict[str, str]) -> NoReturn:
    """Become the executable. The tie to the agent (PR_SET_PDEATHSIG) and the session stay. Raises ProgramNotFound."""
    try:
        os.execvpe(program, [program, *args], env)
    except PermissionError as error:
        raise ProgramNotFound(f"{program} cannot be executed: {error.strerror}", EXIT_NOT_EXECUTABLE) from error
    except OSError as error:
        raise ProgramNotFound(f"{program} cannot be executed: {error.strerror}", EXIT_NOT_FOUND) from error


def _run_script(program: str, args: tuple[str, ...]) -> None:
    path = os.path.abspath(program)
    sys.orig_argv = [sys.executable, "-u", program, *args]
    sys.argv = [program, *args]
    if type(pkgutil.get_importer(path)) not in (type(None), importlib.machinery.FileFinder) or os.path.isdir(path):
        # A folder or an archive with __main__.py inside: the interpreter puts it itself on the path.
        _new_main()
        sys.path.insert(0, program)
        runpy._run_module_as_main("__main__", alter_argv=False)  # type: ignore[attr-defined]
        return
    code = _load(program, path)
    if not sys.flags.safe_path:
        sys.path.insert(0, os.path.dirname(os.path.realpath(path)))
    main = _new_main()
    main.__file__ = path
    main.__loader__ = importlib.machinery.SourceFileLoader("__main__", path)
    vars(main)["__cached__"] = None
    exec(code, vars(main))


def _run_module(program: str, args: tuple[str, ...]) -> None:
    sys.orig_argv = [sys.executable, "-u", "-m", program, *args]
    sys.argv = [program, *args]
    if not sys.flags.safe_path:
        sys.path.insert(0, relocation.of(os.getcwd()))
    _new_main()
    runpy._run_module_as_main(program)  # type: ignore[attr-defined]


def _run_path(program: str, args: tuple[str, ...]) -> None:
    if not os.path.exists(program):
        raise ProgramNotFound(f"can't open file {os.path.abspath(program)!r}: No such file or directory", 2)
    sys.argv = [program, *args]
    _new_main()
    runpy.run_path(program, run_name="__main__")


def _load(program: str, path: str) -> types.CodeType:
    """The script's code, also of a compiled one."""
    try:
        with io.open_code(path) as file:
            compiled: types.CodeType | None = pkgutil.read_code(file)
        if compiled is not None:
            return compiled
        with io.open_code(path) as file:
            source = file.read()
    except OSError as error:
        # The interpreter's own words and its exit code.
        message = f"can't open file {path!r}: [Errno {error.errno}] {error.strerror}"
        raise ProgramNotFound(message, 2) from error
    return compile(source, path, "exec", dont_inherit=True)


def _new_main() -> types.ModuleType:
    """An empty `__main__` with the attributes that the interpreter gives it."""
    main = types.ModuleType("__main__")
    vars(main)["__builtins__"] = __builtins__ if isinstance(__builtins__, types.ModuleType) else sys.modules["builtins"]
    vars(main)["__annotations__"] = {}
    vars(main)["__package__"] = None
    sys.modules["__main__"] = main
    return main


_launchers: dict[str, Callable[[str, tuple[str, ...]], None]] = {
    "script": _run_script,
    "module": _run_module,
    "run_path": _run_path,
}
