"""Where runs live on disk, and which one a person means.

Answers: the directory for a new run, the directory of the run that RUN names (an id, a directory, a journal file, or
nothing: the latest). It reads no journal. Called by the launcher (make, register) and by every reading verb (find).

    $EVERSTEP_HOME/runs/<run id>      the run's directory, or a link to it when --run-dir put it elsewhere
    $EVERSTEP_HOME/runs/latest        link to the run that was started last
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from everstep.errors import ConfigError, JournalError
from everstep.journal.beside import continued, lock
from everstep.journal.beside.private import make_private
from everstep.linux.files import make_own

LATEST = "latest"
JOURNAL_NAME = "journal.jsonl"
LIVE_NAME = "progress.json"
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True)
class RunDir:
    """The names in a run's directory; it may not exist yet."""

    path: Path

    @property
    def journal(self) -> Path:
        return self.path / JOURNAL_NAME

    @property
    def lock(self) -> Path:
        return self.path / "journal.lock"

    @property
    def token(self) -> Path:
        return self.path / "token"

    @property
    def spec(self) -> Path:
        return self.path / "spec.json"

    @property
    def controller(self) -> Path:
        return self.path / "controller.json"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def errors(self) -> Path:
        return self.path / "errors"

    def node(self, node: str) -> Path:
        return self.path / "nodes" / node

    def controller_pid(self) -> int | None:
        """The live controller's process id (0: alive, id unknown), None when no controller has this run."""
        return lock.holder(self.lock)


def home() -> Path:
    """EVERSTEP_HOME, or ~/.everstep. Raises ConfigError for a user without a home, as in containers."""
    try:
        return Path(os.environ.get("EVERSTEP_HOME") or "~/.everstep").expanduser().absolute()
    except RuntimeError:
        raise ConfigError(
            f"no home directory: HOME is not set, and user {os.getuid()} has no passwd entry. "
            "Set HOME or EVERSTEP_HOME, or choose a directory with --run-dir"
        ) from None


def new_run_id() -> str:
    """Short enough to be said aloud, and not taken in this home: "r7f3a"."""
    while True:
        run = f"r{os.urandom(2).hex()}"
        try:
            is_taken = os.path.lexists(home() / "runs" / run)
        except ConfigError:
            is_taken = False
        if not is_taken:
            return run


def make_run_dir(run: str, run_dir: str | None = None) -> RunDir:
    """The directory of a new or reopened run, made if it is not there, and this user's alone. Raises ConfigError,
    JournalError."""
    if not _ID.fullmatch(run) or run == LATEST:
        raise ConfigError(f"run id {run!r}: letters, digits, '.', '_' and '-', at most 100, and not {LATEST!r}")
    path = Path(run_dir).expanduser().absolute() if run_dir else home() / "runs" / run
    try:
        if not run_dir:
            make_own(path.parent)
        make_private(path, is_run=(path / JOURNAL_NAME).exists())
    except OSError as error:
        raise JournalError(
            f"cannot make the run directory {path}: {error.strerror}. Choose another with --run-dir or EVERSTEP_HOME."
        ) from error
    if not os.access(path, os.W_OK | os.X_OK):
        raise JournalError(f"the run directory {path} is not writable. Choose another with --run-dir or EVERSTEP_HOME.")
    return RunDir(path)


def register(run: str, run_dir: RunDir) -> str:
    """Register the directory under `run` and "latest". Returns what went wrong, "" if nothing: a run continues
    without."""
    try:
        runs = home() / "runs"
    except ConfigError:
        return f"cannot register the run: there is no home directory; read it with --run-dir {run_dir.path}"
    try:
        make_own(runs)
        if run_dir.path != runs / run:
            _link(runs / run, run_dir.path)
        _link(runs / LATEST, Path(run) if (runs / run).is_dir() else run_dir.path)
    except OSError as error:
        return f"cannot register the run in {runs}: {error.strerror}; read it with --run-dir {run_dir.path}"
    return ""


def make_known(run: str, run_dir: RunDir) -> None:
    """Register another host's run on a host that keeps its journal. Do nothing if the home directory is shared: the
    other host has registered the run there already."""
    try:
        there = home() / "runs" / run
        is_known = there.exists() and there.resolve().parent.name != run_dir.path.parent.name
    except (ConfigError, OSError):
        return
    if not is_known:
        register(run, run_dir)


def find_run(argument: str | None = None, run_dir: str | None = None) -> RunDir:
    """The run that is meant: --run-dir, RUN as id, directory or journal file, or the latest. If another host has taken
    it over, what that host has, but for a journal file. Raises ConfigError."""
    if run_dir:
        return _with_journal(Path(run_dir).expanduser(), f"--run-dir {run_dir}")
    if argument:
        return _find_named(argument)
    latest = home() / "runs" / LATEST
    if not os.path.lexists(latest):
        raise ConfigError(f"no run yet in {home()}. {_led_elsewhere() or 'Try: everstep demo'}")
    return _with_journal(latest, "the latest run")


def _led_elsewhere() -> str:
    """Return advice for a host that only took part in a run: the record is on another host. Empty: it took part in
    none."""
    try:
        found = sorted((home() / "hosts").iterdir(), key=lambda each: each.stat().st_mtime)
    except OSError:
        return ""
    name = found[-1].name.partition("-")[0] if found else ""
    return (
        f"This host took part in {name}: run this on the first host of that run, where its controller is"
        if name
        else ""
    )


def _find_named(argument: str) -> RunDir:
    registered = home() / "runs" / argument
    if _ID.fullmatch(argument) and os.path.lexists(registered):
        return _with_journal(registered, f"run {argument}")
    path = Path(argument).expanduser()
    if path.is_file():
        return RunDir(path.absolute().parent) if path.name == JOURNAL_NAME else _not_a_journal(path)
    if path.is_dir():
        return _with_journal(path, str(path))
    known = ", ".join(known_runs()[-5:])
    hint = f"The last ones are: {known}." if known else "There is none yet. Try: everstep demo"
    raise ConfigError(f"no run {argument!r}: neither an id in {home() / 'runs'} nor a directory. {hint}")


def known_runs() -> list[str]:
    """Ids of registered runs, oldest first."""
    try:
        entries = [e for e in os.scandir(home() / "runs") if e.name != LATEST and _ID.fullmatch(e.name)]
    except OSError:
        return []
    return [e.name for e in sorted(entries, key=lambda e: (e.stat(follow_symlinks=False).st_mtime_ns, e.name))]


def _with_journal(path: Path, what: str) -> RunDir:
    if (path / JOURNAL_NAME).exists():
        return RunDir(continued.followed(path.resolve(), JOURNAL_NAME))
    where = path.resolve()
    why = "has no journal.jsonl: no run was started there" if where.is_dir() else "is gone: its directory was removed"
    raise ConfigError(f"{what} ({where}) {why}")


def _not_a_journal(path: Path) -> RunDir:
    raise ConfigError(f"{path} is a file, but not a {JOURNAL_NAME}")


def _link(link: Path, target: Path) -> None:
    if link.is_dir() and not link.is_symlink():
        raise OSError(0, f"{link} is a directory of another run")
    draft = link.with_name(f".{link.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    draft.symlink_to(target)
    draft.replace(link)
