"""NVIDIA's launcher with spare nodes: the version that has them, where it is installed, and how it is told.

Answers how `ft_launcher` replaces a lost node by itself, as its manual says: `--nnodes MIN:MAX` keeps MIN nodes at work
and the others waiting ("hot spare nodes", since 0.6.0; 0.4.1, which pip takes on an older system, has none). It gets
every setting that makes it quicker and none that does not belong to the fault. Used by replace.py.
"""

import subprocess
import sys
from pathlib import Path

from contests.peers import TORCH, Contender, cache_folder

VERSION = "0.6.0"
_PACKAGE = f"nvidia-resiliency-ext=={VERSION}"
_NEEDS = (
    *(TORCH, "numpy==2.4.6", "defusedxml", "fastapi", "grpcio", "httpx", "nvidia-ml-py", "packaging", "protobuf"),
    *("psutil", "pydantic", "pydantic-settings", "pynvml", "pyyaml", "setproctitle", "slowapi", "uvicorn"),
)
_PLATFORM = "manylinux_2_39_x86_64"
"""Of its only wheels. What needs so new a C library is a profiler's extension that the launcher does not load, so the
wheel is unpacked where pip by itself would refuse it."""

_QUICK = (
    *("--monitor-interval", "0.1"),  # 0.3 s
    *("--ft-gpu-memory-reclaim-timeout", "0"),  # there is none to wait for
    *("--ft-enable-nic-healthcheck", "false"),
    *("--ft-max-no-progress-cycles", "-1"),  # it would take a kill after a kill for a job that does not get on
)


def ft_launcher_with_spares(*, install: bool) -> Contender:
    name, title = "ft_launcher", f"NVIDIA ft_launcher {VERSION}"
    venv = cache_folder() / "venv-spares"
    python = venv / "bin" / "python"
    if _version(python) != VERSION:
        why = _install(venv, python) if install else f"not installed in {venv}, and --no-install was given"
        if why is not None:
            return Contender(name=name, title=title, absent=why)
    command = (str(python), "-m", "nvidia_resiliency_ext.fault_tolerance.launcher", *_QUICK)
    return Contender(name=name, title=title, command=command, version=VERSION)


def _install(venv: Path, python: Path) -> str | None:
    """None when it worked, else the reason in one line. The whole output is kept beside the environment."""
    venv.parent.mkdir(parents=True, exist_ok=True)
    log = venv.parent / "install-spares.log"
    packages = venv / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    unpack = [*("--no-deps", "--only-binary=:all:", "--platform", _PLATFORM), "--target", str(packages), _PACKAGE]
    steps = (
        [sys.executable, "-m", "venv", "--clear", str(venv)],
        [str(python), "-m", "pip", "install", *_NEEDS],
        [str(python), "-m", "pip", "install", *unpack],
    )
    with log.open("w") as stream:
        for step in steps:
            code = subprocess.run(step, stdout=stream, stderr=subprocess.STDOUT, check=False).returncode
            if code != 0:
                return f"installation failed (exit code {code}); see {log}"
    return None


def _version(python: Path) -> str | None:
    code = "import importlib.metadata as m; print(m.version('nvidia-resiliency-ext'))"
    try:
        done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None
