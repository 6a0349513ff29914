"""Which Python runs the parts: one that has a torch built for CUDA and sees a device, whosoever it is.

An installed torch is never replaced. Candidates are asked in processes of their own, as a broken driver may keep one.
"""

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

LEAST = (3, 11)
_LIMIT_S = 90.0
_ASK = """
import json, sys
found = {"python": list(sys.version_info[:3]), "torch": "", "cuda": "", "devices": 0, "device": "", "why": ""}
try:
    import torch
    found.update(torch=torch.__version__, cuda=torch.version.cuda or "")
    found["devices"] = torch.cuda.device_count() if torch.cuda.is_available() else 0
    found["device"] = torch.cuda.get_device_name(0) if found["devices"] else ""
except BaseException as error:
    found["why"] = f"{type(error).__name__}: {error}"[:300]
print(json.dumps(found))
"""


@dataclasses.dataclass(frozen=True, slots=True)
class Interpreter:
    """What one Python says of itself."""

    path: str
    python: tuple[int, ...] = ()
    torch: str = ""
    cuda: str = ""
    devices: int = 0
    device: str = ""
    why: str = ""

    @property
    def is_usable(self) -> bool:
        return self.python >= LEAST and bool(self.torch)

    @property
    def title(self) -> str:
        version = ".".join(map(str, self.python))
        return f"{self.path} (Python {version}, torch {self.torch or 'none'})"


def find(given: str = "", *, needs_device: bool = True) -> tuple[Interpreter | None, list[Interpreter]]:
    """The first that will do, and all that were asked until then. `given`: this one only."""
    asked = []
    for path in [given] if given else candidates():
        found = ask(path)
        asked.append(found)
        if found.is_usable and (found.devices or not needs_device):
            return found, asked
    return None, asked


def ask(path: str) -> Interpreter:
    try:
        done = subprocess.run([path, "-c", _ASK], capture_output=True, text=True, timeout=_LIMIT_S, check=False)
        said = json.loads(done.stdout.splitlines()[-1])
    except (OSError, subprocess.TimeoutExpired, ValueError, IndexError) as error:
        return Interpreter(path, why=f"{type(error).__name__}: {error}"[:300])
    return Interpreter(path, **{**said, "python": tuple(said["python"])})


def candidates() -> Iterator[str]:
    """Where a Python with torch may be: this one, those on the path, environments in the usual places."""
    seen = set()
    names = ("python3", "python", *(f"python3.{minor}" for minor in range(LEAST[1], 16)))
    environments = [f"{os.environ[name]}/bin/python" for name in ("VIRTUAL_ENV", "CONDA_PREFIX") if name in os.environ]
    placed = [path for where in _PLACES for path in sorted(map(str, Path("/").glob(f"{where}/bin/python3")))]
    for path in (sys.executable, *(shutil.which(name) for name in names), *environments, *placed):
        if path and Path(path).exists() and path not in seen:
            seen.add(path)
            yield path


_PLACES = ("opt/*", "opt/*/.venv", "opt/*/venv", "venv", "workspace/*venv*", "root/*conda*", "home/*/*conda*")


def devices_seen() -> str:
    """What of a GPU the system shows, without any library: empty if nothing."""
    nodes = sorted(str(node) for pattern in ("nvidia[0-9]*", "dxg") for node in Path("/dev").glob(pattern))
    return ", ".join(nodes) or ("nvidia-smi is there" if shutil.which("nvidia-smi") else "")
