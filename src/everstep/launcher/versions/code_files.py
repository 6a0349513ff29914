"""The files of a directory that are code: what git tracks, or would; without git, what the program imports.

Never outputs, checkpoints, data, logs, hidden files, or what looks like a secret. git is asked for names only, with
nothing of the repository's own settings that would run a program. Used for the copy that is taken when a run starts.
"""

import os
import subprocess
from collections.abc import Iterable
from pathlib import Path

from everstep.agent.versions.reading import read_files
from everstep.errors import ConfigError

LARGE_BYTES = 1 << 20
"""A file above is data."""

MAX_BYTES = 16 << 20
MAX_FILES = 2000

_GIT_LIMIT_S = 20.0
_SOURCES = frozenset(
    {".py", ".pyi", ".pyx", ".pxd", ".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".hpp", ".sh", ".toml", ".yaml", ".yml",
     ".cfg", ".ini"}
)  # fmt: skip
"""Suffixes to copy among files that git would track and does not: the rest may be anything that the program writes."""

_SETTINGS = frozenset({".toml", ".yaml", ".yml", ".cfg", ".ini"})
_SECRET_SUFFIXES = (".env", ".pem", ".key", ".p12", ".pfx", ".jks", ".keystore", ".kdbx", ".gpg")
_SECRET_PREFIXES = ("id_rsa", "id_dsa", "id_ecdsa", "id_ed25519", "credentials", "secrets.", "secret.")
_OUTPUTS = frozenset(
    {"outputs", "output", "runs", "logs", "checkpoints", "ckpt", "wandb", "mlruns", "lightning_logs", "data",
     "datasets", "__pycache__", "node_modules", "venv"}
)  # fmt: skip
_WRITTEN = (
    ".pt",
    ".pth",
    ".ckpt",
    ".safetensors",
    ".bin",
    ".log",
    ".npy",
    ".npz",
    ".parquet",
    ".arrow",
    ".pkl",
    ".pyc",
)


def code_files(root: Path, program: Path, path: Iterable[str] = ()) -> list[Path]:
    """Relative to `root`, in order. `path`: where the program's imports are looked up. Raises ConfigError."""
    found = _tracked(root) if (root / ".git").exists() else None
    if found is None or not _fits(root, found):
        found = _imported(root, program, path)
    if not _fits(root, found):
        raise ConfigError(f"{root}: what the program imports is more than {MAX_FILES} files, or {MAX_BYTES >> 20} MiB")
    return found


def may_be_kept(name: Path) -> bool:
    """Hidden files and secrets never are."""
    last = name.name.lower()
    if any(part.startswith(".") for part in name.parts):
        return False
    is_key = last.startswith("id_") and name.suffix.lower() not in _SOURCES  # of ssh, of any kind; id_map.py is code
    return not is_key and not last.endswith(_SECRET_SUFFIXES) and not last.startswith(_SECRET_PREFIXES)


def _tracked(root: Path) -> list[Path] | None:
    """None where git cannot be asked, or does not trust the repository."""
    tracked, others = _list(root, "--cached"), _list(root, "--others", "--exclude-standard")
    if tracked is None or others is None:
        return None
    written = {name.parent for name in others if name.suffix in _WRITTEN}  # a folder of checkpoints, with its settings
    kept = {name for name in tracked if name.suffix not in _WRITTEN}
    kept |= {name for name in others if name.suffix in _SOURCES and not _is_output(name, written)}
    return sorted(name for name in kept if may_be_kept(name) and _is_small(root / name))


def _is_output(name: Path, written: set[Path]) -> bool:
    if _OUTPUTS & set(name.parts[:-1]):
        return True
    return name.suffix != ".py" and any(folder in written for folder in name.parents if folder.parts)


def _list(root: Path, *which: str) -> list[Path] | None:
    command = ["git", "-c", "core.fsmonitor=false", "-C", str(root), "ls-files", "-z", *which]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=_GIT_LIMIT_S,
            check=False,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode != 0:
        return None
    return [Path(os.fsdecode(name)) for name in done.stdout.split(b"\0") if name]


def _imported(root: Path, program: Path, path: Iterable[str]) -> list[Path]:
    """The program's file, what it imports below `root`, and settings that lie beside those."""
    found = {Path(os.path.normpath(file)) for file in read_files(str(program), [str(program.parent), *path])}
    below = {file.relative_to(root) for file in found if file.is_relative_to(root)}
    for folder in {name.parent for name in below}:
        try:
            beside = [Path(entry.name) for entry in os.scandir(root / folder) if entry.is_file()]
        except OSError:
            continue
        below |= {folder / name for name in beside if name.suffix in _SETTINGS}
    return sorted(name for name in below if may_be_kept(name) and _is_small(root / name))


def _is_small(path: Path) -> bool:
    try:
        return path.is_file() and path.stat().st_size <= LARGE_BYTES
    except OSError:
        return False


def _fits(root: Path, names: list[Path]) -> bool:
    try:
        return len(names) <= MAX_FILES and sum((root / name).stat().st_size for name in names) <= MAX_BYTES
    except OSError:
        return False
