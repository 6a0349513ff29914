"""Checks for what can be known to be wrong before anything is started. Each reports what is wrong and what to do.

It starts nothing and leaves nothing behind. Called by `launcher.run`.
"""

import importlib.util
import os
import shutil
import socket
import tempfile
import warnings
from pathlib import Path

from everstep.errors import ConfigError, JournalError, PortInUseError
from everstep.launcher.arguments.settings import Settings
from everstep.model.spec import Launch

MIN_FREE_BYTES = 16 << 20
"""A journal of an hour is below 1 MiB; with less free space than this the disk is full for any purpose."""


def check_program(settings: Settings) -> None:
    """The program is there, can be read, and (a Python file) compiles; its name and arguments are UTF-8."""
    for word in (settings.program, *settings.args):
        if not _is_text(word):
            raise ConfigError(f"not UTF-8: {word!a}. Rename the file, or pass the name in another way")
    match settings.launch:
        case Launch.MODULE:
            _check_module(settings.program)
        case Launch.COMMAND:
            if shutil.which(settings.program) is None:
                raise ConfigError(f"command not found, or not executable: {settings.program}")
        case Launch.SCRIPT | Launch.RUN_PATH:
            _check_script(Path(settings.program))


def check_run_dir(run_dir: Path) -> None:
    """Creates `run_dir`. Raises JournalError when nothing can be written there, or hardly anything."""
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=run_dir) as file:
            file.write(bytes(4096))
            file.flush()
    except OSError as error:
        raise JournalError(
            f"run directory {run_dir} cannot be written: {error.strerror}. Choose another with --run-dir"
        ) from error
    free = shutil.disk_usage(run_dir).free
    if free < MIN_FREE_BYTES:
        raise JournalError(
            f"run directory {run_dir} has {free / 2**20:.1f} MiB free, needed are at least "
            f"{MIN_FREE_BYTES >> 20}. Free some space, or choose another with --run-dir"
        )


def bind(port: int, flag: str, host: str = "127.0.0.1") -> socket.socket:
    """A listening socket, on loopback unless it is for nodes that are elsewhere. Raises PortInUseError."""
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # or a port stays taken for a minute after a run
    try:
        sock.bind((host, port))
        sock.listen(2048)
    except OSError as error:
        sock.close()
        raise PortInUseError(
            f"port {port} on {host} cannot be used: {error.strerror}. Choose another with {flag}"
        ) from error
    return sock


def crowded(num_ranks: int) -> str:
    """More ranks than GPUs is legal, and hardly ever meant. Imports torch where there may be a GPU."""
    if not any(Path("/dev").glob("nvidia[0-9]*")) and not Path("/dev/kfd").exists():
        return ""
    import torch

    num_gpus = torch.cuda.device_count()
    if not 0 < num_gpus < num_ranks:
        return ""
    return f"{num_ranks} ranks on {num_gpus} GPU{'s' if num_gpus > 1 else ''}: several ranks share one"


def _check_script(path: Path) -> None:
    if not path.exists():
        raise ConfigError(f"script not found: {path}")
    if path.is_dir() and (path / "__main__.py").exists():
        return
    try:
        source = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"script {path} cannot be read: {error.strerror}") from error
    if source.startswith((b"PK\x03\x04", importlib.util.MAGIC_NUMBER)):
        return  # python runs zip archives too, and what was compiled before
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the interpreter that runs it says them again
            compile(source, str(path), "exec", dont_inherit=True)
    except SyntaxError as error:
        raise ConfigError(f"script {path} does not compile:\n{_caret(path, error)}") from error
    except ValueError as error:
        raise ConfigError(f"script {path} does not compile: {error}") from error


def _caret(path: Path, error: SyntaxError) -> str:
    lines = [f"  {path}:{error.lineno or '?'}: {type(error).__name__}: {error.msg}"]
    if error.text:
        text = error.text.rstrip("\n")
        lines.append(f"    {text}")
        if error.offset:
            # Tabs stay tabs, so that the caret stands under its character.
            lead = "".join("\t" if char == "\t" else " " for char in text[: error.offset - 1])
            lines.append(f"    {lead}^")
    return "\n".join(lines)


def _is_text(word: str) -> bool:
    try:
        word.encode()
    except UnicodeEncodeError:
        return False
    return True


def _check_module(name: str) -> None:
    import sys

    kept = list(sys.path)
    sys.path.insert(0, os.getcwd())  # noqa: PTH109  (as `python -m` does)
    try:
        found = importlib.util.find_spec(name)
    except (ImportError, ValueError, AttributeError) as error:
        raise ConfigError(f"module {name} cannot be found: {error}") from error
    finally:
        sys.path[:] = kept
    if found is None:
        raise ConfigError(f"module not found: {name}")
    if found.origin and found.origin.endswith(".py") and not found.submodule_search_locations:
        _check_script(Path(found.origin))
