"""The beginning of a rank, before the first line of its program, and the moment at which it is parked.

Until then it watches: audit events (`effects`), files that are looked at (`reads`), variables that are asked for
(`variables`). Afterwards everything is as the interpreter made it. A failure of ours never stops the program: it then
has no twin, and the agent says why.
"""

from __future__ import annotations

import _thread
import os
import sys
from time import monotonic

from everstep.worker.parking import effects, variables
from everstep.worker.parking.descriptors import raise_fd
from everstep.worker.parking.draws import Draws
from everstep.worker.parking.entropy import Entropy
from everstep.worker.parking.finder import OnImport
from everstep.worker.parking.frozen import QUESTIONS, Frozen
from everstep.worker.parking.reads import Reads

TYPE_CHECKING = False  # `typing` would be imported before the program imports it
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType
    from typing import Any

    Install = Callable[["Process", Any], None]
    """Puts the runtime into this process. Called with the process and the assignment that it has received already."""

AFTER_IMPORT = "after import torch"


class Process:
    """One per rank, spare, or process that continues from a twin."""

    def __init__(self, link_fd: int, agent: int, *, is_spare: bool, install: Install) -> None:
        self.pid = os.getpid()
        self.agent = agent
        self.is_spare = is_spare
        self.link_fd = raise_fd(link_fd)
        self.own_fds = {self.link_fd, *_open_fds()}
        """Descriptors that say nothing of the program: ours, and those that it began with."""
        self.closing = {self.link_fd}
        """Those that end with the rank: a twin has its own."""
        self.env = dict(os.environ)
        """The environment as the agent gave it."""
        self.asked: set[str] = set()
        self.roots = effects.library_roots()
        self._above_roots = effects.folders_above(self.roots)
        self.reads = Reads(self._is_fixed)
        self.draws = Draws()
        self.entropy = Entropy(self._on_draw)
        self.has_torch = False
        self.safe_threads: set[int] = set()
        self.finder = OnImport()
        self.frozen = Frozen()
        self.assignment: tuple[dict[str, Any], list[int]] | None = None
        """The assignment of a process that continues and has no runtime yet."""
        self.is_over = False
        """It is parked for good, or never will be."""
        self.why_not = ""
        self.known: frozenset[str] = frozenset()
        """Modules that the newest twin has."""
        self.env_when_parked: dict[str, str] = {}
        self.parked_at = 0.0
        """time.monotonic() then."""
        self.early: list[str] = []
        """Modules that earlier runs of this program have imported after this moment anyway."""
        self.parks_once = False
        """Earlier runs could be parked at the last moment: no twin is left before. Each one costs the rank the copy of
        whatever memory it writes to from then on."""
        self._install_runtime = install
        self._is_installed = False
        self._is_busy = False
        self._had: dict[str, Any] = {}
        self._had_starts: dict[str, Any] = {}
        self._spot: tuple[int, int] = (0, -1)
        self._at_spot: set[str] = set()

    def watch(self) -> None:
        """From here to the moment of parking."""
        sys.addaudithook(_Hook(self))
        self.finder.wait_for("torch", self._on_torch)
        if self.is_over:
            return
        if self.is_spare:
            self.finder.wait_for("torch.distributed.distributed_c10d", self._on_rendezvous)
        for name in ("stat", "lstat"):
            self._had[name] = getattr(os, name)
            setattr(os, name, _noting(self, self._had[name]))
        for name in _STARTS_A_THREAD:
            if hasattr(_thread, name):
                self._had_starts[name] = getattr(_thread, name)
                setattr(_thread, name, _parking_before(self, self._had_starts[name]))
        variables.watch(self._on_question)
        self.entropy.begin()
        self.finder.wait_for("random", self._on_random)
        self.finder.wait_for("numpy.random.mtrand", self.draws.begin_numpy)

    def say_begin(self) -> None:
        """The interpreter has come as far as the program."""
        from everstep.worker.parking import twin

        if not self.is_spare:
            twin.say(self.link_fd, {"begins": self.pid})

    def park(self, why: str, *, is_last: bool = True) -> None:
        """Leave a twin here. Returns in the rank, and later once more in each process that continues from the twin."""
        if self.is_over or self._is_busy or os.getpid() != self.pid:
            return
        self._is_busy = True
        try:
            if is_last:
                self.is_over = True
                self._import_early()
                self._stop_watching()
            if is_last or not self.is_spare:
                self._leave_twin(f"{why}{self._where()}")
        except Exception as error:
            self._say_why_not(f"{type(error).__name__}: {error}")
        finally:
            self._is_busy = False

    def become(self, frame: dict[str, Any], fds: list[int]) -> None:
        """Take over a new assignment: its environment, where it differs from what was given before."""
        self.is_spare = False
        self.own_fds |= set(fds)
        self.closing |= set(fds)
        env = {str(name): str(value) for name, value in frame["env"].items()}
        for name in [name for name in self.env if name not in env]:
            os.environ.pop(name, None)
        for name, value in env.items():
            if self.env.get(name) != value:
                os.environ[name] = value
        self.env = env
        self.assignment = (frame, fds)
        if not self.is_over:  # it continues from an early twin, and may leave a later one
            self.asked.clear()
        if "torch" in sys.modules or self._is_installed:
            self._install()

    def see(self, event: str, args: tuple[Any, ...]) -> None:
        """An audit event of `effects.WATCHED`."""
        frame = effects.caller()
        if event in effects.READS:
            if effects.is_by_importer(frame):
                self._note_code(event, args)
                return
            path = args[0] if args and args[0] is not None else "."
            if event != "open" or not effects.is_writing(args[2]):
                self.note_read(path, content=True)
                return
            if isinstance(path, int) or effects.is_nowhere(os.fsdecode(path)):
                return
        if event not in effects.PHYSICAL and effects.is_in_library_import(frame, self.roots):
            return
        if event not in effects.PHYSICAL and effects.is_by_importer(frame):
            return
        self._is_busy = False
        self.park(event)

    def _note_code(self, event: str, args: tuple[Any, ...]) -> None:
        """A module of the program's own is loaded: from its source, or from what was compiled of it."""
        path = os.fsdecode(args[0]) if event == "open" and isinstance(args[0], str | bytes) else ""
        if path.endswith(".pyc"):
            folder, name = os.path.split(path)
            path = f"{os.path.dirname(folder)}/{name.split('.', 1)[0]}.py"
        if path.endswith(".py"):
            self.reads.note(path)

    def note_read(self, path: object, *, content: bool) -> None:
        """The program looks at a file, or whether it is there. What a library looks at while it is imported does not
        count: it looks through every folder of `sys.path`."""
        if self.reads.is_known(path, content=content):
            return
        if not effects.is_in_library_import(effects.caller(), self.roots):
            self.reads.note(path, content=content)

    def _on_question(self, name: bytes) -> None:
        if self.is_over or self._is_busy or os.getpid() != self.pid:
            return
        frame = effects.caller()
        is_walk = variables.is_walking(frame)
        while frame is not None and variables.is_environment(frame):
            frame = frame.f_back
        is_library = frame is not None and frame.f_code.co_filename.startswith(self.roots)
        if is_walk and is_library:
            return  # a library filters all variables by a prefix of its own: that does not ask for the rank
        if self.is_spare:
            self.park(f"asks for {name.decode()}")
        elif name != variables.NAMES:
            self._note_question(name.decode(), frame, is_library=is_library)

    def _note_question(self, name: str, frame: FrameType | None, *, is_library: bool) -> None:
        """Several at one instruction of a library are no questions: it copies all variables."""
        spot = (id(frame), frame.f_lasti if frame is not None else -1)
        if spot != self._spot:
            self._spot, self._at_spot = spot, {name}
            self.asked.add(name)
            return
        self._at_spot.add(name)
        if is_library:
            self.asked -= self._at_spot
        else:
            self.asked.add(name)

    def _on_random(self, module: Any) -> None:  # noqa: ANN401
        self.draws.begin_python(module)
        if not self.is_over and os.getpid() == self.pid:
            self.entropy.begin_random(module)

    def _on_draw(self) -> None:
        if self.is_over or self._is_busy or os.getpid() != self.pid:
            return
        if not effects.is_in_library_import(effects.caller(), self.roots):
            self.park("draws from the system's entropy")

    def _on_torch(self, module: Any) -> None:  # noqa: ANN401
        """Torch has been imported."""
        self.has_torch = True
        if os.getpid() != self.pid:
            return
        from everstep.worker.parking import fitness

        try:
            self.safe_threads = fitness.threads()
            self.draws.begin_torch(module)
        except Exception as error:
            self.why_not = f"{type(error).__name__}: {error}"
        if not self.is_spare and not self._is_installed:
            self._install()
        if not self.parks_once:
            self.park(AFTER_IMPORT, is_last=False)

    def _on_rendezvous(self, module: Any) -> None:  # noqa: ANN401
        """A spare that first asks in its rendezvous who it is waits before that call: the rank's hooks then see it."""
        from functools import wraps

        original = module.init_process_group

        @wraps(original)
        def init_process_group(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - whatever torch's takes
            is_inner = self.is_over
            self.park("rendezvous")
            now = module.init_process_group  # with hooks, in the process that continues
            return (original if is_inner or now is init_process_group else now)(*args, **kwargs)

        module.init_process_group = init_process_group

    def install_early(self) -> None:
        """The program asks for everstep itself before, or without, torch."""
        if self._is_installed or os.getpid() != self.pid:
            return
        if self.is_spare:
            self.park("asks for everstep")
        if not self._is_installed:
            self._install()

    def _install(self) -> None:
        self._is_installed = True
        was_busy, self._is_busy = self._is_busy, True
        try:
            assignment, self.assignment = self.assignment, None
            self._install_runtime(self, assignment)
        except Exception as error:
            sys.stderr.write(f"everstep: this rank runs unobserved: {type(error).__name__}: {error}\n")
        finally:
            self._is_busy = was_busy

    def _import_early(self) -> None:
        names, self.early = self.early, []
        if "torch" in sys.modules:
            for name in names:
                __import__(name)

    def _leave_twin(self, stage: str) -> None:
        from everstep.worker.parking import fitness, twin

        why = fitness.why_unfit(self.safe_threads, self.own_fds) or variables.why_of_one_generation(self.asked)
        if why:
            self._say_why_not(f"{stage}: {why}")
        if self.is_spare:
            if why:
                os._exit(0)
            twin.serve_as_spare(self)
            self.draws.restore()
            self.draws.renew()
        elif not why:
            self.known, self.env_when_parked = frozenset(sys.modules), dict(os.environ)
            self.parked_at = monotonic()
            if twin.leave(self, stage):
                self.draws.restore()
                self.draws.renew()

    def _say_why_not(self, why: str) -> None:
        from everstep.worker.parking import twin

        self.why_not = why
        try:
            twin.say(self.link_fd, {"no_twin": why})
        except OSError:
            return

    def report(self, error: BaseException) -> None:
        """The interpreter is about to print an uncaught exception."""
        path = self.env.get("TORCHELASTIC_ERROR_FILE", "")
        if not path or os.getpid() != self.pid:
            return
        was_busy, self._is_busy = self._is_busy, True
        try:
            from everstep.worker.process import errors

            errors.report_exception(path, error)
            if isinstance(error, KeyboardInterrupt):
                _note_interrupt()
        except Exception as ours:
            sys.stderr.write(f"everstep: the error report was not written: {type(ours).__name__}: {ours}\n")
        finally:
            self._is_busy = was_busy

    def _stop_watching(self) -> None:
        for name, function in self._had.items():
            setattr(os, name, function)
        self._had.clear()
        self.entropy.end()
        threading = sys.modules.get("threading")
        for name, function in self._had_starts.items():
            setattr(_thread, name, function)
            if threading is not None and hasattr(threading, f"_{name}"):
                setattr(threading, f"_{name}", function)
        self._had_starts.clear()
        variables.leave()

    def _where(self) -> str:
        place = effects.place_of(effects.caller(), self.roots)
        return f" at {place}" if place else ""

    def _is_fixed(self, path: str, *, content: bool) -> bool:
        """Whether the path cannot change while the job runs. A folder that contains libraries is fixed as a folder, not
        in its content."""
        if not content and path in self._above_roots:
            return True
        return effects.is_nowhere(path) or (path + os.sep).startswith(self.roots)


_HEARD = effects.WATCHED | QUESTIONS | {"sys.excepthook"}


class _Hook:
    """The audit hook. It stays for the life of the process and costs a comparison after parking."""

    def __init__(self, process: Process) -> None:
        self._process = process

    def __call__(self, event: str, args: tuple[Any, ...]) -> None:
        if event not in _HEARD:  # nearly all of them
            return
        process = self._process
        if event == "sys.excepthook":
            process.report(args[2])
            process.is_over = True  # it ends: a process continued from what its own hook does would end as well
        elif event in QUESTIONS:
            process.frozen.release()
        if process.is_over or event not in effects.WATCHED or process._is_busy:
            return
        if os.getpid() != process.pid:
            return
        process._is_busy = True
        try:
            process.see(event, args)
        except Exception as error:
            process.why_not = f"{type(error).__name__}: {error}"
        finally:
            process._is_busy = False


def _note_interrupt() -> None:
    """The interpreter ends by SIGINT if the last text that it ran was interrupted, and ours is not the last it ran."""
    try:
        exec("raise KeyboardInterrupt")
    except KeyboardInterrupt:
        return


def _open_fds() -> set[int]:
    return {int(name) for name in os.listdir("/proc/self/fd")} - {0, 1, 2}


_STARTS_A_THREAD = ("start_new_thread", "start_new", "start_joinable_thread")


def _parking_before(process: Process, function: Callable[..., Any]) -> Callable[..., Any]:
    """Interpreters before 3.12 raise no audit event for a thread that is about to start."""

    def start(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        process.park("start of a thread")
        return function(*args, **kwargs)

    start.__name__ = start.__qualname__ = function.__name__
    start.__module__, start.__doc__ = "_thread", function.__doc__
    return start


def _noting(process: Process, function: Callable[..., Any]) -> Callable[..., Any]:
    def look(path: Any, *, dir_fd: int | None = None, follow_symlinks: bool = True) -> Any:  # noqa: ANN401
        if not process.is_over and not process._is_busy and not isinstance(path, int) and dir_fd is None:
            process._is_busy = True
            try:
                process.note_read(path, content=False)
            except Exception as error:
                process.why_not = f"{type(error).__name__}: {error}"
            finally:
                process._is_busy = False
        if function.__name__ == "lstat":
            return function(path, dir_fd=dir_fd)
        return function(path, dir_fd=dir_fd, follow_symlinks=follow_symlinks)

    look.__name__ = look.__qualname__ = function.__name__
    look.__doc__ = function.__doc__
    look.__module__ = "posix"
    return look


process: Process | None = None
"""The state of this process; None if it is none of ours."""


def begin(link_fd: int, agent: int, *, is_spare: bool, install: Install) -> None:
    """Called once, before the program."""
    global process
    process = Process(link_fd, agent, is_spare=is_spare, install=install)
    process.is_over = os.environ.get("EVERSTEP_TWINS", "").lower() in {"0", "off", "no"}
    process.watch()
    process.say_begin()


def park(why: str) -> None:
    """Something is about to happen after which this process could not be forked: our own doing."""
    if process is not None:
        process.park(why)
