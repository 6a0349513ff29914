"""The ways to save that bench/checkpoint.py compares, each as a launch, and the environment the peers live in.

Answers which of them can run here, and why one cannot. The peers (torch's own included, so that all have the same
build) run under torchrun in an environment of their own below the cache folder; everstep in this interpreter's, under
`everstep run`. Must not touch this interpreter's environment.
"""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from contests.peers import TORCH, cache_folder

# DLRover's wheel does not name all that it imports: its master's client needs grpcio and protobuf.
PACKAGES = (
    TORCH,
    "numpy==2.4.6",
    "nvidia-resiliency-ext>=0.4.1",
    "dlrover[torch]==0.6.1",
    "grpcio",
    "protobuf",
)

TITLES = {
    "dcp.save": "dcp.save",
    "dcp.async": "dcp.async_save",
    "dcp.process": "dcp.async_save, process",
    "dcp.stager": "dcp.async_save, async stager",
    "dlrover-memory": "DLRover flash, memory",
    "dlrover-disk": "DLRover flash, disk",
    "nvidia-local": "NVIDIA local",
    "everstep": "everstep, each step",
    "everstep-disk": "everstep, each step, + disk",
}
TO_DISK = ("dcp.save", "dcp.async", "dcp.process", "dcp.stager", "dlrover-disk", "nvidia-local")


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way to save. `absent` says why it cannot run here."""

    name: str
    absent: str | None = None
    version: str = ""

    @property
    def title(self) -> str:
        return TITLES[self.name]

    @property
    def is_ours(self) -> bool:
        return self.name.startswith("everstep")

    def command(self, num_ranks: int, *, folder: Path, num_buffers: int) -> list[str]:
        """Without the script."""
        if not self.is_ours:
            launcher = [str(_python()), "-m", "torch.distributed.run", "--standalone", "--max-restarts", "0"]
            return [*launcher, "--nproc-per-node", str(num_ranks)]
        config = folder / "everstep.toml"
        config.write_text(f"[policy]\nsnapshot_buffers = {num_buffers}\n")
        line = [_everstep(), "run", "--config", str(config), "--run-dir", str(folder / "run")]
        if self.name == "everstep-disk":
            line += ["--checkpoint-dir", str(folder / "checkpoints"), "--checkpoint-every", "4"]
        return [*line, "--nproc-per-node", str(num_ranks)]


def ways(names: list[str], *, install: bool) -> list[Way]:
    why = _why_no_peers(install=install) if any(not name.startswith("everstep") for name in names) else None
    return [_ours(name) if name.startswith("everstep") else _peer(name, why) for name in names]


def _ours(name: str) -> Way:
    if not Path(_everstep()).exists():
        return Way(name=name, absent=f"no {_everstep()}")
    options = subprocess.run([_everstep(), "run", "--help"], capture_output=True, text=True, check=False)
    if options.returncode != 0:
        return Way(name=name, absent=f"everstep run --help ended with {options.returncode}")
    if name == "everstep-disk" and "--checkpoint-dir" not in options.stdout:
        return Way(name=name, absent="everstep run has no --checkpoint-dir yet")
    return Way(name=name, version="this tree")


def _peer(name: str, why: str | None) -> Way:
    package = {"dlrover": "dlrover", "nvidia": "nvidia-resiliency-ext"}.get(name.split("-")[0], "torch")
    return Way(name=name, absent=why, version="" if why else f"{package} {_version(package)}")


def _folder() -> Path:
    return cache_folder() / "checkpoint"


def _python() -> Path:
    return _folder() / "bin" / "python"


def _everstep() -> str:
    return str(Path(sys.executable).with_name("everstep"))


def _why_no_peers(*, install: bool) -> str | None:
    """None when the environment is there, made now if it was not."""
    if _python().exists() and _version("dlrover") and _version("nvidia-resiliency-ext"):
        return None
    if not install:
        return f"not installed in {_folder()}, and --no-install was given"
    _folder().parent.mkdir(parents=True, exist_ok=True)
    log = _folder().parent / "checkpoint-install.log"
    steps = (
        [sys.executable, "-m", "venv", "--clear", str(_folder())],
        [str(_python()), "-m", "pip", "install", *PACKAGES],
    )
    with log.open("w") as stream:
        for step in steps:
            if subprocess.run(step, stdout=stream, stderr=subprocess.STDOUT, check=False).returncode != 0:
                errors = [line for line in log.read_text().splitlines() if line.startswith("ERROR")]
                return f"installation failed ({errors[0] if errors else 'no reason given'}); see {log}"
    return None


def _version(package: str) -> str:
    code = f"import importlib.metadata as m; print(m.version({package!r}))"
    done = subprocess.run([_python(), "-c", code], capture_output=True, text=True, check=False, env={**os.environ})
    return done.stdout.strip() if done.returncode == 0 else ""
