"""Which modules the template imports: the default list, plus what earlier runs of the same script turned out to use.

Kept in `$EVERSTEP_HOME/imports/`, one file per script and interpreter, so that the next run starts warm. A module
that cannot be imported ahead (it starts a thread, opens a device, crashes) is kept as well, with the reason.
"""

import hashlib
import json
import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path

import msgspec

from everstep.version import __version__

DEFAULT_MODULES = ("torch", "torch._dynamo", "torch.distributed", "torch.nn.parallel", "torch.optim", "numpy")
"""What every DDP script needs within its first step. torch._dynamo comes in with the first optimizer anyway."""

_NAME = re.compile(r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$")
_MAX_MODULES = 20_000


class ImportList(msgspec.Struct, kw_only=True):
    """`modules` in the order of import; `excluded`: name -> why not."""

    modules: list[str] = []
    excluded: dict[str, str] = {}

    def wanted(self) -> list[str]:
        names = dict.fromkeys((*DEFAULT_MODULES, *self.modules))
        return [name for name in names if not self._is_excluded(name)]

    def learn(self, names: Iterable[object]) -> int:
        """Add what a worker reported; returns how many were new. Names that are none are dropped."""
        known = set(self.modules)
        good = dict.fromkeys(name for name in names if isinstance(name, str) and _NAME.match(name))
        new = [name for name in good if name not in known]
        self.modules += new[: _MAX_MODULES - len(self.modules)]
        return len(new)

    def _is_excluded(self, name: str) -> bool:
        """Excluding a package excludes what is inside it."""
        parts = name.split(".")
        return any(".".join(parts[: n + 1]) in self.excluded for n in range(len(parts)))


def cache_path(home: Path, program: str) -> Path:
    key = "\0".join((str(Path(program).absolute()), sys.executable, sys.version, __version__))
    return home / "imports" / f"{hashlib.sha256(key.encode()).hexdigest()[:24]}.json"


def load(path: Path) -> ImportList:
    """What was learned before; empty if nothing was, or it cannot be read."""
    try:
        raw = msgspec.json.decode(path.read_bytes(), type=ImportList)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return ImportList()
    clean = ImportList(excluded=raw.excluded)
    clean.learn(raw.modules)
    return clean


def save(path: Path, imports: ImportList) -> None:
    """Whole or not at all. Raises OSError; the caller goes on without."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    draft.write_text(json.dumps({"modules": imports.modules, "excluded": imports.excluded}))
    draft.replace(path)
