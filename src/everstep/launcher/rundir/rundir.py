"""The run directory: which one, whether it can be used, and what is in it before the first process starts.

Called by `launcher.run`. The journal in it is only read here; writing it is the controller's.
"""

import fcntl
import os
import tempfile
from pathlib import Path

import msgspec

from everstep.controller.record.spec_file import SpecFile, save_json
from everstep.core.state.policy import Policy
from everstep.errors import ConfigError, JournalError, RunLockedError
from everstep.journal.beside import continued
from everstep.journal.reader import Reading, read_journal
from everstep.journal.runs import RunDir, make_run_dir, new_run_id, register
from everstep.launcher.arguments.checks import check_run_dir
from everstep.launcher.arguments.settings import Settings
from everstep.launcher.rundir.keys import Keys
from everstep.launcher.versions import versions
from everstep.model.actions import Finish, StartWorkers
from everstep.model.events import CheckpointsFound, RunReopened, RunStarted
from everstep.model.record import Record
from everstep.model.spec import RunSpec
from everstep.model.versions import Version

MAX_SIBLINGS = 10_000
"""Runs with the same --rdzv-id in one home."""


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """A run directory that is ours until `lock_fd` is closed."""

    path: Path
    file: SpecFile
    keys: Keys
    lock_fd: int
    racks: tuple[str, ...] = ()  # of this machine's nodes, in turn
    is_encrypted: bool = False  # also on loopback
    notes: tuple[str, ...] = ()
    found: CheckpointsFound | None = None  # what the persistent tier holds; None: there is none


class TakenError(ConfigError):
    """The directory holds another run, which stays as it is."""


class _Earlier(msgspec.Struct, frozen=True, kw_only=True):
    """The journal's record of earlier attempts."""

    run: str
    spec: RunSpec
    policy: Policy
    num_attempts: int
    version: Version | None = None  # of the program, that its last ranks were started with


def prepare(settings: Settings, spec: RunSpec) -> Prepared:
    """Create or reopen the run directory. Raises JournalError (not writable, full, damaged), RunLockedError,
    ConfigError (finished, another shape).

    An id from --rdzv-id may be used again, as under torchrun: for another step of the same Slurm job, after a requeue,
    after success. A run of this id that is over, in use, or something else keeps its directory; the new one goes into
    "job77.2". One that did not end, and is the same program, is resumed.
    """
    may_share = bool(settings.run_id) and not settings.run_dir and settings.may_share_id
    run = settings.run_id or new_run_id()
    for number in range(1, MAX_SIBLINGS + 1):
        name = run if number == 1 else f"{run}.{number}"
        try:
            return _prepare_as(name, settings, spec, must_be_same=may_share)
        except (TakenError, RunLockedError):
            if not may_share or number == MAX_SIBLINGS:
                raise
    raise AssertionError("the last one returns or raises")


def _prepare_as(run: str, settings: Settings, spec: RunSpec, *, must_be_same: bool) -> Prepared:
    run_dir = make_run_dir(run, settings.run_dir or None)
    check_run_dir(run_dir.path)
    lock_fd = lock(run_dir)
    try:
        earlier = _read_earlier(run_dir.journal)
        file = SpecFile(run=run, spec=spec, policy=settings.policy)
        notes: tuple[str, ...] = ()
        if earlier is not None:
            if must_be_same and _is_another(earlier.spec, spec):
                raise TakenError(f"run {run} in {run_dir.path} is of another program, or of another size")
            file, notes = _reopen(file, earlier, settings, run_dir.path)
        else:
            file = msgspec.structs.replace(file, spec=versions.plan_start(file.spec, run_dir.path))
            notes = _copy_notes(file.spec)
        published = _publish_logs("" if settings.log_dir == os.devnull else settings.log_dir, file)
        file = msgspec.structs.replace(file, spec=msgspec.structs.replace(file.spec, published_logs=published))
        keys = Keys(run_dir.path, file.run)
        continued.forget(run_dir.path)
        save_json(run_dir.spec, file)
        problem = register(file.run, run_dir)
    except BaseException:
        os.close(lock_fd)
        raise
    notes = (*notes, problem) if problem else notes
    return Prepared(path=run_dir.path, file=file, keys=keys, lock_fd=lock_fd, racks=settings.racks, notes=notes)


def _publish_logs(log_dir: str, file: SpecFile) -> tuple[str, ...]:
    """torchrun's folders in --log-dir, one per node: <id>_<random>. Raises ConfigError."""
    if not log_dir:
        return ()
    try:
        root = Path(log_dir).absolute()
        root.mkdir(parents=True, exist_ok=True)
        return tuple(tempfile.mkdtemp(prefix=f"{file.run}_", dir=root) for _ in range(file.spec.num_slots))
    except OSError as error:
        raise ConfigError(f"--log-dir {log_dir}: {error.strerror}") from error


def _is_another(was: RunSpec, now: RunSpec) -> bool:
    return (was.program, was.launch, was.world_size) != (now.program, now.launch, now.world_size)


def lock(run_dir: RunDir) -> int:
    """The directory itself is locked for the launcher's life: a second launcher stops before it touches anything.
    Raises RunLockedError, OSError."""
    path = run_dir.path
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise RunLockedError(
            f"{path} is in use by another `everstep run`. Nothing was changed. Choose another --run-dir"
        ) from None
    pid = run_dir.controller_pid()
    if pid is not None:
        os.close(fd)
        raise RunLockedError(f"{path} is in use: process {pid or '?'} writes its journal. Choose another --run-dir")
    led = RunDir(continued.followed(path, run_dir.journal.name))
    if led.path != path and led.controller_pid() is not None:
        os.close(fd)
        raise RunLockedError(
            f"{path} is in use: another host continues with this run, in {led.path}. Nothing was changed. Choose "
            "another --run-dir"
        )
    return fd


def _read_earlier(path: Path) -> _Earlier | None:
    if not path.exists():
        return None
    reading = read_journal(path)
    records = [entry for entry in reading.entries if isinstance(entry, Record)]
    started = next((r.event for r in records if isinstance(r.event, RunStarted)), None)
    if started is None:
        return None  # it ended before its first record; the controller starts it anew
    for record in records:
        for action in record.actions:
            if isinstance(action, Finish):
                raise TakenError(
                    f"run {started.run} in {path.parent} is over ({action.outcome}). Nothing was changed. Choose "
                    "another --run-dir or --rdzv-id for a new run"
                )
    starts = [action for record in records for action in record.actions if isinstance(action, StartWorkers)]
    num_attempts = 1 + sum(isinstance(record.event, RunReopened) for record in records)
    return _Earlier(
        run=started.run,
        spec=started.spec,
        policy=_policy(reading),
        num_attempts=num_attempts,
        version=starts[-1].version if starts else None,
    )


def _policy(reading: Reading) -> Policy:
    try:
        return msgspec.convert(reading.header.policy, Policy)
    except msgspec.ValidationError as error:
        raise JournalError(f"the journal's policy cannot be used by this version: {error}") from error


def _reopen(file: SpecFile, earlier: _Earlier, settings: Settings, path: Path) -> tuple[SpecFile, tuple[str, ...]]:
    """Resume with the settings that the run was started with; returns notes on new settings without effect."""
    if settings.run_dir and settings.run_id and settings.run_id != earlier.run:
        raise ConfigError(f"{path} holds run {earlier.run}, not {settings.run_id}: leave --rdzv-id out, or another dir")
    was, now = earlier.spec, file.spec
    if (was.num_slots, was.nproc_per_node) != (now.num_slots, now.nproc_per_node):
        raise ConfigError(
            f"run {earlier.run} in {path} has a world size of {_shape(was)}, asked for is {_shape(now)}: "
            "the world size never changes in a run. Use the same, or another --run-dir for a new run"
        )
    kept = {
        "mode": (was.mode, now.mode),
        "standby": (was.num_standby, now.num_standby),
        "checkpoint-dir": (was.checkpoint_dir, now.checkpoint_dir),
        "checkpoint-every": (was.checkpoint_every_s, now.checkpoint_every_s),
        "checkpoint-keep": (was.checkpoint_keep, now.checkpoint_keep),
        "init-from": (was.init_from, now.init_from),
    }
    notes = [
        f"{name} stays {old or 'unset'}, as the run was started" for name, (old, new) in kept.items() if old != new
    ]
    if earlier.policy != settings.policy:
        notes.append(f"the policy stays as recorded in the journal ({earlier.policy.name})")
    spec = msgspec.structs.replace(
        now,
        mode=was.mode,
        num_standby=was.num_standby,
        checkpoint_dir=was.checkpoint_dir,
        checkpoint_every_s=was.checkpoint_every_s,
        checkpoint_keep=was.checkpoint_keep,
        init_from=was.init_from,
        code_copy=was.code_copy,
        code_root=was.code_root,
        code_why=was.code_why,
    )
    if earlier.version is not None:
        what = f"{earlier.version.id} ({earlier.version.source or 'changed settings'})"
        notes.append(f"the program stays {what}, which the run had; `everstep update` changes it")
    attempt = earlier.num_attempts + 1
    return SpecFile(run=earlier.run, spec=spec, policy=earlier.policy, attempt=attempt), tuple(notes)


def _copy_notes(spec: RunSpec) -> tuple[str, ...]:
    if not spec.code_why:
        return ()
    return (f"no copy of the code is kept ({spec.code_why}): a way back to it would run what is in the directory then",)


def _shape(spec: RunSpec) -> str:
    return f"{spec.world_size} ({spec.num_slots} nodes x {spec.nproc_per_node})"
