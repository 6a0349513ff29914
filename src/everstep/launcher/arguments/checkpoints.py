"""The persistent tier as the launcher sees it: where it is, whether it can be used, and what it holds before a run.

Whether it works is found out before anything starts, by writing a small file; what lies there goes to the controller,
which decides from where the run resumes. Called by `launcher.arguments.settings` and `launcher.run`.
"""

import math
import os
import re
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from everstep.checkpoint.persist.store.scanning import scan_all
from everstep.checkpoint.persist.store.storage import is_url, open_storage, sentence
from everstep.errors import ConfigError, SnapshotError
from everstep.model.events import CheckpointsFound
from everstep.model.spec import RunSpec
from everstep.report.parts.units import ago, count, duration, plural

ANSWER_S = 60.0
"""A storage that does not answer a small request for so long will not take checkpoints either."""

KEYS = ("dir", "every", "keep", "init_from")
_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}
_T = TypeVar("_T")


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """The checkpoint settings that were asked for. `dir` and `init_from` are absolute, or URLs."""

    dir: str = ""
    every_s: float = 600.0
    keep: int = 3
    init_from: str = ""


def resolve_checkpoints(given: Mapping[str, object], environ: Mapping[str, str], table: object) -> Wanted:
    """Flag > environment > [checkpoint] of the file. Raises ConfigError."""
    file = table if isinstance(table, dict) else None
    if file is None:
        raise ConfigError(f"[checkpoint] must be a table with the keys {', '.join(KEYS)}")
    for key in file:
        if key not in KEYS:
            raise ConfigError(f"[checkpoint] unknown key {key!r}; allowed: {', '.join(KEYS)}")

    def choose(key: str, flag: str) -> object:
        of_environ = environ.get("EVERSTEP_" + flag.upper())
        return given[flag] if given.get(flag) is not None else of_environ or file.get(key)

    made = Wanted()
    every, keep = choose("every", "checkpoint_every"), choose("keep", "checkpoint_keep")
    return Wanted(
        dir=_absolute(choose("dir", "checkpoint_dir")),
        every_s=made.every_s if every is None else seconds("checkpoint-every", every),
        keep=made.keep if keep is None else _keep(keep),
        init_from=_absolute(choose("init_from", "init_from")),
    )


def useless(given: Mapping[str, object], wanted: Wanted) -> str:
    """Explain which settings were asked for and have no effect; empty if all of them have one."""
    asked = [flag for flag in ("checkpoint_every", "checkpoint_keep") if given.get(flag) is not None]
    if not asked or wanted.dir:
        return ""
    return f"without --checkpoint-dir nothing is written: --{asked[0].replace('_', '-')} has no effect"


def seconds(name: str, value: object) -> float:
    """30, "30s", "10m", "1.5h". Raises ConfigError."""
    match = re.fullmatch(r"\s*([0-9.]+)\s*([smh]?)\s*", str(value)) if not isinstance(value, bool) else None
    try:
        number = float(match[1]) * _UNITS[match[2]] if match else math.nan
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise ConfigError(f"{name} = {value!r}: must be a time above 0, as 90, 30s, 10m, 1.5h")
    return number


def check(wanted: Wanted) -> None:
    """Whether it can be written, and what is to start from is there. Makes the folder. Raises ConfigError."""
    if wanted.init_from and not is_url(wanted.init_from) and not Path(wanted.init_from).is_dir():
        raise ConfigError(f"--init-from {wanted.init_from}: no such directory. Name the directory of one checkpoint")
    if not wanted.dir:
        return

    def probe() -> None:
        storage = open_storage(wanted.dir)
        name = f"everstep-probe-{os.getpid()}"
        storage.write(name, [b"can this be written?"])
        storage.remove(name)

    try:
        _within(probe, wanted.dir)
    except (OSError, ImportError, ValueError) as error:
        why = sentence(error, wanted.dir) if isinstance(error, OSError) else str(error)
        raise ConfigError(f"--checkpoint-dir {wanted.dir} cannot be used: {why}. Nothing was started") from error


def find(spec: RunSpec) -> CheckpointsFound | None:
    """The checkpoints that exist; None without a persistent tier. Raises ConfigError: continuing without it would
    silently begin at step 0."""
    if not spec.checkpoint_dir:
        return None
    try:
        found = _within(lambda: scan_all(spec.checkpoint_dir), spec.checkpoint_dir)
    except SnapshotError as error:
        raise ConfigError(f"{error}. Nothing was started") from error
    if found.refused and not found.checkpoints:
        newest = max(found.refused, key=lambda refused: refused.step)
        raise ConfigError(
            f"{spec.checkpoint_dir} holds checkpoints and none that can be restored; step {newest.step}: {newest.why}. "
            "Nothing was started: see `everstep ckpt ls --dir`, or give another --checkpoint-dir to begin anew"
        )
    return CheckpointsFound(at=time.time(), checkpoints=found.checkpoints)


def header_line(spec: RunSpec, found: CheckpointsFound | None) -> str:
    """For the head of a run's output; empty without a persistent tier."""
    start = f"; a first start is from {spec.init_from}" if spec.init_from else ""
    if found is None:
        return f"  starts from {spec.init_from}" if spec.init_from else ""
    newest = max(found.checkpoints, key=lambda checkpoint: checkpoint.step, default=None)
    rhythm = f"every {duration(spec.checkpoint_every_s)}, {spec.checkpoint_keep} kept"
    if newest is None:
        return f"  checkpoints {spec.checkpoint_dir} ({rhythm}): none there yet{start}"
    there = f"{plural(len(found.checkpoints), 'checkpoint')} there"
    from_ = f"resumes after step {count(newest.step)}, written {ago(newest.at, found.at)}"
    return f"  checkpoints {spec.checkpoint_dir} ({rhythm}): {there}, {from_}"


def _within(work: Callable[[], _T], where: str) -> _T:
    """A storage that hangs must not take the launcher with it. Raises what `work` raises, and ConfigError."""
    done: list[_T] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            done.append(work())
        except BaseException as error:  # reported in the other thread
            failed.append(error)

    thread = threading.Thread(target=run, name="everstep-storage", daemon=True)
    thread.start()
    thread.join(ANSWER_S)
    if failed:
        raise failed[0]
    if not done:
        raise ConfigError(f"{where} has not answered within {ANSWER_S:.0f} s. Nothing was started")
    return done[0]


def _absolute(value: Any) -> str:  # noqa: ANN401 - of a TOML file
    text = str(value or "")
    return text if not text or is_url(text) else open_storage(text).root


def _keep(value: object) -> int:
    try:
        number = int(str(value))
    except ValueError:
        number = 0
    if number < 1:
        raise ConfigError(f"checkpoint-keep = {value!r}: must be a whole number, at least 1")
    return number
