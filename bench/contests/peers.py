"""The launchers that are compared, each as one command, and the environment that NVIDIA's lives in.

Answers which contenders can run here, and why one cannot: a peer that is not installed is absent with a
reason, never a number. torchrun and everstep run in the environment of this interpreter, with the same
torch and the same Python; NVIDIA's launcher in one of its own under the cache folder. Must not touch this
interpreter's environment.
"""

import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

TORCH = "torch==2.13.0"  # the version everstep is developed on; a bare "torch" would pull gigabytes of CUDA
PEER_PACKAGES = (TORCH, "numpy==2.4.6", "nvidia-resiliency-ext>=0.4.1")
MAX_RESTARTS = 20  # the same for all; torchrun's own default is 0

NAMES = ("torchrun", "torchrun-workaround", "ft_launcher", "everstep")


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """One launcher. `absent` says why it cannot run here; None: it can."""

    name: str
    title: str
    command: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    version: str = ""
    absent: str | None = None

    def line(self, script: Path, num_ranks: int) -> list[str]:
        ranks = ["--nproc-per-node", str(num_ranks), "--max-restarts", str(MAX_RESTARTS)]
        return [*self.command, *ranks, str(script)]


def cache_folder() -> Path:
    root = os.environ.get("EVERSTEP_CACHE")
    return (Path(root) if root else Path.home() / ".cache" / "everstep") / "bench" / "peers"


def torchrun(*, workaround: bool) -> Contender:
    """torchrun of this interpreter's torch; `workaround`: a store for each attempt (pytorch#167288)."""
    command = (sys.executable, "-m", "torch.distributed.run", "--standalone")
    version = _version(Path(sys.executable), "torch")
    if version is None:
        name, title = ("torchrun-workaround", "torchrun, workaround") if workaround else ("torchrun", "torchrun")
        return Contender(name=name, title=title, absent=f"no torch in {sys.executable}")
    if workaround:
        env = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        return Contender(
            name="torchrun-workaround",
            title="torchrun, own store¹",
            command=command,
            env=env,
            version=version,
        )
    return Contender(name="torchrun", title="torchrun as it ships", command=command, version=version)


def everstep() -> Contender:
    command = Path(sys.executable).with_name("everstep")
    if not command.exists():
        return Contender(name="everstep", title="everstep", absent=f"no {command}")
    tried = subprocess.run([command, "run", "--help"], capture_output=True, text=True, check=False)
    if tried.returncode != 0:
        why = tried.stderr.strip().splitlines()[-1:] or [f"exit code {tried.returncode}"]
        return Contender(name="everstep", title="everstep", absent=f"everstep run --help: {why[0]}")
    version = _version(Path(sys.executable), "everstep") or ""
    return Contender(name="everstep", title="everstep", command=(str(command), "run"), version=version)


def ft_launcher(*, install: bool) -> Contender:
    """NVIDIA's launcher, installed on first use; told to do without its config file, nothing else."""
    name, title = "ft_launcher", "NVIDIA ft_launcher"
    venv = cache_folder() / "venv"
    script = venv / "bin" / "ft_launcher"
    if not script.exists():
        why = _install(venv) if install else f"not installed in {venv}, and --no-install was given"
        if why is not None:
            return Contender(name=name, title=title, absent=why)
    version = _version(venv / "bin" / "python", "nvidia-resiliency-ext")
    if version is None:
        return Contender(name=name, title=title, absent=f"no nvidia-resiliency-ext in {venv}")
    command = (str(script), "--standalone", "--ignore-missing-fault-tol-cfg")
    return Contender(name=name, title=title, command=command, version=version)


def contenders(names: list[str], *, install: bool) -> list[Contender]:
    makers = {
        "torchrun": lambda: torchrun(workaround=False),
        "torchrun-workaround": lambda: torchrun(workaround=True),
        "ft_launcher": lambda: ft_launcher(install=install),
        "everstep": everstep,
    }
    return [makers[name]() for name in names]


def _install(venv: Path) -> str | None:
    """None when it worked, else the reason in one line. The whole output is kept beside the environment."""
    venv.parent.mkdir(parents=True, exist_ok=True)
    log = venv.parent / "install.log"
    steps = (
        [sys.executable, "-m", "venv", "--clear", str(venv)],
        [str(venv / "bin" / "python"), "-m", "pip", "install", *PEER_PACKAGES],
    )
    with log.open("w") as stream:
        for step in steps:
            code = subprocess.run(step, stdout=stream, stderr=subprocess.STDOUT, check=False).returncode
            if code != 0:
                stream.flush()
                errors = [line for line in log.read_text().splitlines() if line.startswith("ERROR")]
                return f"installation failed ({errors[0] if errors else f'exit code {code}'}); see {log}"
    return None


def _version(python: Path, package: str) -> str | None:
    """The installed version as that interpreter's metadata says it; None when it is not installed."""
    code = f"import importlib.metadata as m; print(m.version({package!r}))"
    try:
        done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None
