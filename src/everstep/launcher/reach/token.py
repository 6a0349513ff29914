"""The join token: where this host finds it. Without one no host joins; it never reaches a rank.

    EVERSTEP_JOIN_TOKEN, EVERSTEP_JOIN_TOKEN_FILE     given to all hosts by the user
    RUN_DIR/join-token                                with --run-dir on a shared file system
    EVERSTEP_HOME/join/<host>_<port>                  where the home directory is shared

The first host makes a token when it is given none, and puts it into the last two.
"""

import contextlib
import ctypes
import os
import re
import secrets
import stat
from collections.abc import MutableMapping
from pathlib import Path

from everstep.errors import ConfigError, JournalError
from everstep.journal.runs import home
from everstep.launcher.arguments.hosts import Hosts
from everstep.linux.files import write_whole
from everstep.wire.joining import JoinToken

VARIABLE, FILE_VARIABLE = "EVERSTEP_JOIN_TOKEN", "EVERSTEP_JOIN_TOKEN_FILE"
NAME = "join-token"
_MAX_BYTES = 4096
_TOKEN_BYTES = 32
_ENV_START, _ENV_END = 47, 48  # fields 50 and 51 of /proc/PID/stat, counted from the state


def given(environ: MutableMapping[str, str]) -> JoinToken | None:
    """By the user, in the environment; taken out of it, so that no rank inherits it, nor finds it in
    /proc. Raises ConfigError."""
    text, path = environ.pop(VARIABLE, ""), environ.pop(FILE_VARIABLE, "")
    if environ is os.environ:
        _overwrite(VARIABLE)
    if text:
        return _token(text, VARIABLE)
    return _read(Path(path), FILE_VARIABLE) if path else None


def shared(hosts: Hosts, run_dir: str) -> JoinToken | None:
    """The token that the first host has put where this one sees it; None: it has not, or nothing is shared. Raises
    ConfigError."""
    places = [Path(run_dir).expanduser() / NAME] if run_dir else []
    with contextlib.suppress(ConfigError):
        places.append(place_at_home(hosts))
    found = next((place for place in places if os.path.lexists(place)), None)
    return _read(found, str(found), is_given=False) if found is not None else None


def make(hosts: Hosts, run_dir: Path) -> tuple[JoinToken, tuple[Path, ...]]:
    """A new token, and where it was written. Raises JournalError when it cannot be written for this run."""
    text = secrets.token_hex(_TOKEN_BYTES)
    places = [run_dir / NAME]
    try:
        write_whole(places[0], f"{text}\n".encode(), mode=0o600)
    except OSError as error:
        raise JournalError(f"cannot write {places[0]}: {error.strerror}") from error
    with contextlib.suppress(ConfigError, OSError):  # without a writable home there is nothing to share
        place = place_at_home(hosts)
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_whole(place, f"{text}\n".encode(), mode=0o600)
        places.append(place)
    return JoinToken(text), tuple(places)


def forget(places: tuple[Path, ...]) -> None:
    """Remove the tokens: the run is over, and no host joins it any more."""
    for place in places:
        with contextlib.suppress(OSError):
            place.unlink()


def forget_earlier(hosts: Hosts) -> None:
    """Remove what an earlier run of this endpoint left that was killed: hosts would find it, and be refused with it."""
    with contextlib.suppress(ConfigError):
        forget((place_at_home(hosts),))


def place_at_home(hosts: Hosts) -> Path:
    """Raises ConfigError for a user without a home."""
    return home() / "join" / re.sub(r"[^A-Za-z0-9._-]", "-", f"{hosts.host}_{hosts.port}")


def missing(hosts: Hosts) -> ConfigError:
    return ConfigError(
        f"no join token for the run at {hosts.endpoint}: {VARIABLE} and {FILE_VARIABLE} are not set, and no shared "
        "directory has it. Nothing was started. Give all hosts the same token, at least 16 random "
        f"characters: export {VARIABLE}=$(openssl rand -hex 16)"
    )


def _read(path: Path, said_by: str, *, is_given: bool = True) -> JoinToken:
    """Read a token from a file that only this user can have written and read.

    `is_given`: the user names it, and it may be what a container mounts: a link, or root's. Where it is only looked
    for, a link could lead to a file whose content is public."""
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (0 if is_given else os.O_NOFOLLOW)
    try:
        fd = os.open(path, flags)
        with os.fdopen(fd, "rb") as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise ConfigError(f"{said_by}: {path} is not a file")
            owners = (os.geteuid(), 0) if is_given else (os.geteuid(),)
            if found.st_uid not in owners:
                raise ConfigError(
                    f"{said_by}: {path} belongs to user {found.st_uid}, who could know it. It is not used"
                )
            if (found.st_uid or not is_given) and found.st_mode & 0o077:
                raise ConfigError(f"{said_by}: other users can read {path}: chmod 600 {path}")
            text = file.read(_MAX_BYTES + 1).decode("utf-8-sig", errors="replace").strip()
    except OSError as error:
        raise ConfigError(f"{said_by}: {path} cannot be read: {error.strerror}") from error
    if len(text) > _MAX_BYTES or len(text.splitlines()) > 1:
        raise ConfigError(f"{said_by}: {path} has more than one line, or {_MAX_BYTES} bytes: a join token is one line")
    return _token(text, said_by)


def _token(text: str, said_by: str) -> JoinToken:
    try:
        return JoinToken(text)
    except ConfigError as error:
        raise ConfigError(f"{said_by}: {error}") from error


def _overwrite(name: str) -> None:
    """Put asterisks in the place of a variable's value in /proc/self/environ, which still has it after it was taken out
    of `os.environ`. Where the kernel does not say where it lies, it stays."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        begin, end = int(fields[_ENV_START]), int(fields[_ENV_END])
        at = begin
        for each in ctypes.string_at(begin, end - begin).split(b"\0"):
            if each.startswith(f"{name}=".encode()):
                skip = len(name) + 1
                ctypes.memset(at + skip, ord("*"), len(each) - skip)
            at += len(each) + 1
