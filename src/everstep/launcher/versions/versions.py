"""Copies of the program's code in the run directory, so that every version of it can be started, and rolled back to.

For `everstep update` a folder becomes `<run_dir>/code/<hash of its content>`: small files are copied, so that edits of
the original do not change a version; large ones, which are data, are linked to where they are. What `everstep run`
starts with becomes `<run_dir>/code/start`: code only (`code_files`), copied beside the start, which does not wait.
"""

import contextlib
import hashlib
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec

from everstep.errors import ConfigError
from everstep.launcher.versions import code_files
from everstep.model.spec import Launch, RunSpec

LARGE_BYTES = 1 << 20
"""A file above is data: linked, not copied."""

MAX_BYTES = 64 << 20
MAX_FILES = 5000
"""Limit for one version. Beyond, the folder is not one of code."""

START = "start"
"""Name of the folder with the code that the run was started with."""

LEFT_OUT = frozenset(
    {".git", ".hg", ".svn", "__pycache__", ".venv", "venv", "node_modules", ".mypy_cache", ".ruff_cache",
     ".pytest_cache", ".ipynb_checkpoints", ".tox", ".idea", ".vscode", "wandb", ".eggs"}
)  # fmt: skip
_GIT_LIMIT_S = 60.0


class Copy(msgspec.Struct, frozen=True, kw_only=True):
    """Code as it was: `code` stands for the user's folder `root`."""

    source: str  # "folder /home/anna/job", "git 3f2c1a9"
    code: str
    root: str
    num_files: int
    num_bytes: int


def plan_start(spec: RunSpec, run_dir: Path) -> RunSpec:
    """The spec, with the folder in which `copy_start` will put what the run is started with, or why there is none."""
    if spec.launch is Launch.COMMAND:
        return spec
    root = _root_of_start(spec)
    if root is None:
        return msgspec.structs.replace(spec, code_why="the program's file is not in a directory that can be copied")
    return msgspec.structs.replace(spec, code_copy=str(run_dir / "code" / START), code_root=str(root))


def copy_start(spec: RunSpec) -> str:
    """Copy what `plan_start` planned; the folder appears when it is complete. Returns why there is none, or "". Never
    raises for that: a rollback to it then runs what is in the user's folder."""
    program = _program_file(spec)
    target, root = Path(spec.code_copy), Path(spec.code_root)
    if program is None or target.exists():
        return ""
    try:
        names = code_files.code_files(root, program, [spec.cwd])
        target.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=".draft-", dir=target.parent))
        try:
            for name in names:
                (draft / name).parent.mkdir(parents=True, exist_ok=True)
                with contextlib.suppress(FileNotFoundError):  # files may be edited meanwhile
                    shutil.copy(root / name, draft / name)
            draft.rename(target)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    except (ConfigError, OSError) as error:
        return str(error)
    return ""


def copy_for_update(what: str, spec: RunSpec, run_dir: Path) -> Copy:
    """`what`: a folder, or a revision of the git repository that the program is in. Raises ConfigError."""
    folder = Path(what).expanduser()
    try:
        if folder.is_dir():
            return copy_folder(folder.absolute(), _stands_for(folder.absolute(), spec), run_dir)
        return _copy_revision(what, spec, run_dir)
    except OSError as error:
        raise ConfigError(f"{what} cannot be copied to {run_dir}: {error}") from error


def copy_folder(folder: Path, root: Path, run_dir: Path, source: str = "", max_files: int = MAX_FILES) -> Copy:
    """Copy a folder into the run directory. Raises ConfigError for a folder that is too large, OSError."""
    store = run_dir / "code"
    store.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=".draft-", dir=store))
    try:
        digest, num_files, num_bytes = _copy_tree(folder, draft, leave_out=run_dir, max_files=max_files)
        target = store / digest
        if not target.exists():
            try:
                draft.rename(target)
            except OSError:
                if not target.exists():  # else another process made the same at the same time
                    raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return Copy(
        source=source or f"directory {folder}",
        code=str(target),
        root=str(root),
        num_files=num_files,
        num_bytes=num_bytes,
    )


def _copy_tree(folder: Path, target: Path, *, leave_out: Path, max_files: int) -> tuple[str, int, int]:
    """Hash of the content, number of files copied, and their bytes."""
    hashed = hashlib.sha256()
    num_files = num_bytes = 0
    for path in _files_in(folder, leave_out):
        name = path.relative_to(folder)
        place = target / name
        place.parent.mkdir(parents=True, exist_ok=True)
        size = path.stat().st_size
        if size > LARGE_BYTES:
            place.symlink_to(path)
            hashed.update(os.fsencode(f"{name}\0link {path} {size}\0"))
            continue
        num_files, num_bytes = num_files + 1, num_bytes + size
        if num_files > max_files or num_bytes > MAX_BYTES:
            raise ConfigError(
                f"{folder} is not a directory of code: more than {max_files} files, or {MAX_BYTES >> 20} MiB in small "
                "ones. Name the directory that holds the program and what it imports, or a git revision"
            )
        data = path.read_bytes()
        place.write_bytes(data)
        place.chmod(path.stat().st_mode & 0o777 | 0o600)
        hashed.update(os.fsencode(f"{name}\0{len(data)}\0") + data)
    return hashed.hexdigest()[:16], num_files, num_bytes


def _files_in(folder: Path, leave_out: Path) -> Iterator[Path]:
    """Regular files, in an order that does not depend on the machine. Caches, repositories, environments and runs of
    ours are left out, and so are hidden files and secrets; links are followed where they lead to files."""
    for found, folders, files in os.walk(folder):
        here = Path(found)
        folders[:] = sorted(
            name for name in folders if name not in LEFT_OUT and not _is_no_code(here / name, leave_out)
        )
        for name in sorted(files):
            path = here / name
            if (
                not name.endswith((".pyc", ".pyo"))
                and code_files.may_be_kept(path.relative_to(folder))
                and path.is_file()
            ):
                yield path


def _is_no_code(folder: Path, run_dir: Path) -> bool:
    """An environment of Python's, or a run directory."""
    return (
        folder.resolve() == run_dir.resolve() or (folder / "pyvenv.cfg").exists() or (folder / "journal.jsonl").exists()
    )


def _program_file(spec: RunSpec) -> Path | None:
    """Where the program's file is, as the user sees it; None: a module that is not below the current folder."""
    cwd = Path(spec.cwd)
    if spec.launch is Launch.MODULE:
        place = cwd.joinpath(*spec.program.split("."))
        found = [place.with_suffix(".py"), place / "__main__.py", place / "__init__.py"]
        return next((path for path in found if path.is_file()), None)
    return Path(os.path.normpath(cwd / spec.program))


def _root_of_start(spec: RunSpec) -> Path | None:
    """The folder that the program is part of: its repository, else where its imports begin."""
    program = _program_file(spec)
    if program is None or not program.exists():
        return None
    near = Path(spec.cwd) if spec.launch is Launch.MODULE else program.parent
    repository = next((folder for folder in (near, *near.parents) if (folder / ".git").exists()), None)
    user = _user_home()
    if near in (user, Path(near.anchor)):
        return None
    return near if repository is None or repository == user else repository


def _user_home() -> Path | None:
    """None: HOME is not set, and the user is not in the list of users."""
    try:
        return Path.home()
    except RuntimeError:
        return None


def _stands_for(folder: Path, spec: RunSpec) -> Path:
    """The folder of the run's start that this one stands for: where the program has the same place in it. Raises
    ConfigError."""
    program = _program_file(spec)
    if spec.launch is Launch.COMMAND or program is None:
        return Path(spec.cwd)
    near = Path(spec.cwd) if spec.launch is Launch.MODULE else program.parent
    places = [Path(spec.code_root)] if spec.code_root else []
    roots = [root for root in dict.fromkeys([*places, Path(spec.cwd), near]) if program.is_relative_to(root)]
    for root in roots:
        if (folder / program.relative_to(root)).is_file():
            return root
    tried = dict.fromkeys(str(program.relative_to(root)) for root in roots)
    raise ConfigError(f"{folder} does not hold the run's program: looked for {' and '.join(tried)} in it")


def _copy_revision(revision: str, spec: RunSpec, run_dir: Path) -> Copy:
    """Raises ConfigError."""
    program = _program_file(spec)
    at = Path(spec.cwd) if program is None else program.parent
    try:
        root = Path(_git(at, "rev-parse", "--show-toplevel"))
    except ConfigError:
        raise ConfigError(
            f"{revision!r} is not a directory, and {at}, where the run's program is, belongs to no git repository"
        ) from None
    try:
        short = _git(root, "rev-parse", "--short", "--verify", f"{revision}^{{commit}}")
    except ConfigError as error:
        raise ConfigError(f"{revision!r} is neither a directory nor a revision of {root} ({error})") from error
    with tempfile.TemporaryDirectory(prefix="everstep-") as folder:
        archive = Path(folder) / "code.tar"
        _git(root, "archive", "--format=tar", f"--output={archive}", short)
        tree = Path(folder) / "tree"
        with tarfile.open(archive) as opened:
            opened.extractall(tree, filter="data")
        stands_for = _stands_for_revision(root, at)
        if program is not None and not (tree / program.relative_to(stands_for)).is_file():
            raise ConfigError(f"git {short} does not hold the run's program, {program.relative_to(stands_for)}")
        return copy_folder(tree, stands_for, run_dir, source=f"git {short}")


def _stands_for_revision(root: Path, at: Path) -> Path:
    """The repository's folder as the user's paths name it: git resolves symbolic links."""
    return next((folder for folder in (at, *at.parents) if folder.resolve() == root.resolve()), root)


def _git(folder: Path, *words: str) -> str:
    """Raises ConfigError with what git says."""
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *words], capture_output=True, text=True, timeout=_GIT_LIMIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"git cannot be asked: {error}") from error
    if done.returncode != 0:
        said = done.stderr.strip().splitlines()
        raise ConfigError(f"git: {said[-1] if said else f'exit code {done.returncode}'}")
    return done.stdout.strip()
