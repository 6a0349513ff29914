"""What a machine without a network needs beyond torch: everstep's own dependencies, as wheels in a folder.

`prefetch` runs where there is a network, for several Pythons, and leaves out torch and all that comes with it unless
told otherwise. `install` runs on the machine with the GPU, into a folder of its own: the Python that is there, and its
packages, stay as they are.
"""

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
PYTHONS = ("3.11", "3.12", "3.13")
_PLATFORMS = [f"manylinux_2_{minor}_x86_64" for minor in (39, 35, 34, 31, 28, 27, 26, 24, 17)] + [
    "manylinux2014_x86_64"
]
_IMPORTS = {"google-re2": "re2", "prometheus-client": "prometheus_client", "nvidia-ml-py": "pynvml", "py-spy": "py_spy"}
"""Distributions whose modules have another name. py-spy is a program."""

_MISSING = """
import importlib, json, sys
import importlib.metadata
found = []
for name, module in json.loads(sys.argv[1]).items():
    try: importlib.metadata.version(name) if name == "py-spy" else importlib.import_module(module)
    except Exception: found.append(name)
print(json.dumps(found))
"""


def requirements() -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return [*project["dependencies"], *project["optional-dependencies"]["gpu"]]


def prefetch(folder: Path, pythons: Sequence[str] = PYTHONS, torch: str = "") -> int:
    """Bytes in the folder afterwards. Raises subprocess.CalledProcessError. `torch`: a version that is fetched too,
    several gigabytes: for a machine that has none."""
    folder.mkdir(parents=True, exist_ok=True)
    wanted = [*requirements(), *([f"torch=={torch}"] if torch else [])]
    for python in pythons:
        line = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
        line += ["--only-binary=:all:", "--implementation", "cp", "--python-version", python, "--dest", str(folder)]
        for platform in _PLATFORMS:
            line += ["--platform", platform]
        subprocess.run([*line, *wanted], check=True)
    return sum(path.stat().st_size for path in folder.glob("*.whl"))


def missing(python: str, path: str) -> list[str]:
    """Distributions that this Python cannot import, with `path` as its PYTHONPATH. Raises RuntimeError."""
    names = [re.split(r"[<>=!~\[; ]", requirement)[0] for requirement in requirements()]
    asked = json.dumps({name: _IMPORTS.get(name, name) for name in names})
    env = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(
        [python, "-c", _MISSING, asked], capture_output=True, text=True, timeout=60, check=False, env=env
    )
    if done.returncode != 0:
        raise RuntimeError(f"{python} cannot say what it has: {done.stderr.strip()[-300:]}")
    return list(json.loads(done.stdout))


def install(python: str, names: Sequence[str], wheels: Path, target: Path) -> str:
    """Why it could not be done; empty if it was."""
    if not list(wheels.glob("*.whl")):
        return (
            f"it lacks {', '.join(names)}, and there are no wheels in {wheels}: run `make gpu-prefetch` where there is "
            "a network, and bring that folder along"
        )
    line = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index", "--no-compile"]
    line += ["--find-links", str(wheels), "--target", str(target), "--upgrade", *names]
    done = subprocess.run(line, capture_output=True, text=True, timeout=300, check=False)
    return "" if done.returncode == 0 else done.stderr.strip()[-400:]


def has_torch(wheels: Path) -> bool:
    return bool(list(wheels.glob("torch-*.whl")))
