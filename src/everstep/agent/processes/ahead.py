"""What ranks of this run import after their twins were left: written by the first node that knows, read by standbys.

A file in the run directory. On a machine that does not share it a standby imports nothing ahead, which costs its first
start those imports and nothing else.
"""

import hashlib
import logging
import math
import sys
from pathlib import Path

import msgspec

from everstep.linux.files import make_own, write_whole
from everstep.linux.regular import read_regular

MAX_MODULES = 20_000
SHARED = "torch._dynamo"
"""What the first optimizer imports takes longer than all the rest of a restart. A rank that is known to import it
does so just before it is parked, and its twin has it too."""

_log = logging.getLogger(__name__)


class Ahead(msgspec.Struct, kw_only=True):
    """`modules` in the order of import; `changed`: variables that libraries look at, as they are in a rank that has
    imported all of them; `took_s`: its import of them took no longer (0: not known); `is_late`: each rank could be
    parked at the last moment, so no earlier twin is needed; `was_stale`: once it was, because what the program reads
    before that changes."""

    modules: list[str] = []
    changed: dict[str, str | None] = {}
    took_s: float = 0.0
    is_late: bool = False
    was_stale: bool = False

    @property
    def parks_once(self) -> bool:
        return self.is_late and not self.was_stale


def parse(modules: list[str], changed: dict[str, str | None], took_s: float = 0.0) -> Ahead:
    """What a rank says. What is no name of a module is left out."""
    names = [name for name in modules if name.replace(".", "").isidentifier()]
    return Ahead(modules=names[:MAX_MODULES], changed=changed, took_s=took_s if 0.0 <= took_s < math.inf else 0.0)


def cache_path(home: Path, program: str) -> Path:
    """Where this machine keeps what earlier runs of this program have shown."""
    key = "\0".join((str(Path(program).absolute()), _version_of(program), sys.executable, sys.version))
    return home / "ahead" / f"{hashlib.sha256(key.encode()).hexdigest()[:24]}.json"


def _version_of(program: str) -> str:
    """What was shown of a file says nothing of another one."""
    try:
        found = Path(program).stat()
    except OSError:
        return ""
    return f"{found.st_size} {found.st_mtime_ns}"


def early(known: Ahead | None) -> list[str]:
    """What a rank may import just before it is parked: a run has shown that it imports it afterwards anyway, and that
    importing it alone leads to the same variables."""
    return [SHARED] if known is not None and SHARED in known.modules else []


def path_in(run_dir: Path) -> Path:
    return run_dir / "ahead.json"


def write(path: Path, ahead: Ahead) -> None:
    """Whole or not at all; without it standbys are less warm."""
    try:
        make_own(path.parent)
        write_whole(path, msgspec.json.encode(ahead), mode=0o600)  # it says what ranks import
    except OSError as error:
        _log.warning("standbys do not know what to import: %s", error)


def read(path: Path) -> Ahead | None:
    """The imports on record. None: nothing yet, or it cannot be read."""
    try:
        return msgspec.json.decode(read_regular(path), type=Ahead)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
