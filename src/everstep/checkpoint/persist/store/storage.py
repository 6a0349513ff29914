"""Files of the persistent tier by name, in a folder or in an object store.

Answers: how are bytes put under a name so that a reader sees all of them or nothing, whichever process dies. It knows
no checkpoint. Two kinds: a local folder (temporary name, fsync, rename), and everything that fsspec knows by a URL,
where an upload appears whole or not at all. Called by everything in `persist`; imports fsspec only for a URL.

Names are relative to the root, with "/". Faults stay OSErrors; `sentence` puts them into words for people.
"""

import errno
import os
import re
import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

from everstep.checkpoint.persist.store.plain import chunks_of, read_file, rename_file, size_of
from everstep.linux.regular import MOST_BYTES

_URL = re.compile(r"[a-z][a-z0-9+.-]*://|[a-z][a-z0-9+.-]*::", re.IGNORECASE)
_TEMPORARY = ".tmp-"
REPLACED = ".replaced"
"""Suffix of the old folder while another one takes its place."""

DISCARDED = ".discarded"
"""Suffix of a folder that is being removed, so that it cannot be used meanwhile."""

_TEMPORARY_STALE_S = 3600.0
"""A file under a temporary name is written within one attempt; older ones were left by a process that was killed."""

Bytes = bytes | bytearray | memoryview


class Storage(Protocol):
    """A root and what lies under it."""

    root: str

    def size(self, name: str) -> int | None:
        """None: there is no such file."""

    def read(self, name: str, most: int = MOST_BYTES) -> bytes:
        """In a folder: a regular file of at most `most` bytes, never through a link."""

    def chunks(self, name: str) -> Iterator[bytes]:
        """Yield the file in pieces, where that is possible: for checksums of files that may be long."""

    def write(self, name: str, chunks: Iterable[Bytes]) -> int:
        """All or nothing; replaces what was there. Durable when it returns. Returns the number of bytes."""

    def names(self, folder: str = "") -> list[str]:
        """Last parts of what lies directly in `folder`, files and folders; [] if it is not there."""

    def age_s(self, name: str) -> float | None:
        """Seconds since the file was written; None: not there, or not known."""

    def remove(self, name: str) -> None:
        """A file, or a folder with all in it. Nothing happens if it is not there."""

    def rename(self, name: str, to: str) -> None:
        """Rename a file; or a folder, in the place of none or of an empty one, where folders can be moved at all."""

    def move_folder(self, name: str, to: str, last: str) -> None:
        """Put a folder in the place of `to`; where that is not one act, the file `last` goes first and comes last."""

    def discard_folder(self, name: str, into: str, first: str) -> None:
        """Remove a folder by way of the folder `into`: it loses its name in one act. Where there is no such act, the
        file `first` goes first. Nothing happens if it is not there."""

    def path(self, name: str) -> str:
        """The path as a person or another library writes it."""

    def seen_from(self, folder: str, name: str) -> str:
        """`name` as torch.distributed.checkpoint needs it in a checkpoint that lies in `folder`."""


def is_url(root: str) -> bool:
    return bool(_URL.match(root)) and not root.lower().startswith(("file://", "local://"))


def open_storage(root: str) -> Storage:
    """Nothing is made or checked yet."""
    if is_url(root):
        return UrlStorage(root)
    return FolderStorage(re.sub(r"^(file|local)://", "", root))


class FolderStorage:
    """A folder of a file system that renames atomically."""

    def __init__(self, root: str) -> None:
        self.root = str(Path(root).expanduser().absolute())
        self._base = Path(self.root)

    def size(self, name: str) -> int | None:
        return size_of(self._base / name)

    def read(self, name: str, most: int = MOST_BYTES) -> bytes:
        return read_file(self._base / name, most)

    def chunks(self, name: str) -> Iterator[bytes]:
        return chunks_of(self._base / name)

    def write(self, name: str, chunks: Iterable[Bytes]) -> int:
        path = self._base / name
        draft = path.with_name(f"{_TEMPORARY}{os.getpid()}-{os.urandom(4).hex()}-{path.name}")
        made_in = _make_folder(path.parent)
        num_bytes = 0
        try:
            with draft.open("xb", buffering=0) as file:
                for chunk in chunks:
                    num_bytes += _write_all(file, memoryview(chunk))
                os.fsync(file.fileno())
            draft.replace(path)
        except BaseException:
            with suppress(OSError):
                draft.unlink()
            raise
        _sync_folder(path.parent)
        if made_in is not None:  # new folders are names in others, up to one that was there
            for folder in path.parent.parents:
                _sync_folder(folder)
                if folder == made_in:
                    break
        return num_bytes

    def names(self, folder: str = "") -> list[str]:
        try:
            found = [entry.name for entry in os.scandir(self._base / folder)]
        except (FileNotFoundError, NotADirectoryError):
            return []
        return sorted(name for name in found if not name.startswith(_TEMPORARY))

    def age_s(self, name: str) -> float | None:
        try:
            return max(0.0, time.time() - (self._base / name).stat().st_mtime)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def remove(self, name: str) -> None:
        path = self._base / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=False)
        else:
            path.unlink(missing_ok=True)

    def rename(self, name: str, to: str) -> None:
        rename_file(self._base, name, to)

    def move_folder(self, name: str, to: str, last: str) -> None:
        target = self._base / to
        _sync_folder(self._base / name)
        if target.exists():
            self.remove(name + REPLACED)
            target.rename(self._base / (name + REPLACED))
        try:
            (self._base / name).rename(target)
        except FileNotFoundError:  # another process has discarded it
            with suppress(FileNotFoundError):
                (self._base / (name + REPLACED)).rename(target)
            raise
        _sync_folder(target.parent)
        self.remove(name + REPLACED)

    def discard_folder(self, name: str, into: str, first: str) -> None:
        last_part = Path(name).name
        with suppress(FileNotFoundError):
            (self._base / name).rename(self._base / into / f"{last_part}-{os.urandom(4).hex()}{DISCARDED}")
        for left in self.names(into):
            if left.startswith(last_part) and left.endswith(DISCARDED):
                self.remove(f"{into}/{left}")

    def path(self, name: str) -> str:
        return str(self._base / name)

    def seen_from(self, folder: str, name: str) -> str:
        return os.path.relpath(name, folder)

    def remove_leftovers(self, folder: str) -> None:
        """Files that were under way in `folder` when their writer was killed."""
        with suppress(FileNotFoundError, NotADirectoryError):
            for entry in os.scandir(self._base / folder):
                if entry.name.startswith(_TEMPORARY) and time.time() - entry.stat().st_mtime > _TEMPORARY_STALE_S:
                    Path(entry.path).unlink(missing_ok=True)


class UrlStorage:
    """Whatever fsspec knows: s3://, gs://, memory://, ... An upload is whole or not there."""

    def __init__(self, root: str) -> None:
        import fsspec

        self.root = root.rstrip("/")
        with _as_os_errors(self.root):
            # A listing that is remembered hides what other nodes wrote since.
            filesystem, base = fsspec.core.url_to_fs(self.root, use_listings_cache=False)
        self._fs: Any = filesystem
        self._base = str(base).rstrip("/")

    def size(self, name: str) -> int | None:
        with _as_os_errors(self.root):
            try:
                return int(self._fs.size(self._at(name)))
            except FileNotFoundError:
                return None

    def read(self, name: str, most: int = MOST_BYTES) -> bytes:
        with _as_os_errors(self.root):
            return bytes(self._fs.cat_file(self._at(name)))

    def chunks(self, name: str) -> Iterator[bytes]:
        yield self.read(name)

    def write(self, name: str, chunks: Iterable[Bytes]) -> int:
        data = b"".join(bytes(chunk) for chunk in chunks)
        with _as_os_errors(self.root):
            self._fs.pipe_file(self._at(name), data)
        return len(data)

    def names(self, folder: str = "") -> list[str]:
        with _as_os_errors(self.root):
            self._fs.invalidate_cache()
            try:
                found = self._fs.ls(self._at(folder) if folder else self._base, detail=False)
            except (FileNotFoundError, NotADirectoryError):
                return []
        return sorted(str(name).rstrip("/").rsplit("/", 1)[-1] for name in found)

    def age_s(self, name: str) -> float | None:
        with _as_os_errors(self.root):
            try:
                modified = self._fs.modified(self._at(name))
            except (FileNotFoundError, NotImplementedError, KeyError):
                return None
        return max(0.0, time.time() - float(modified.timestamp()))

    def remove(self, name: str) -> None:
        with _as_os_errors(self.root), suppress(FileNotFoundError):
            self._fs.rm(self._at(name), recursive=True)

    def rename(self, name: str, to: str) -> None:
        with _as_os_errors(self.root):
            self._fs.mv(self._at(name), self._at(to))

    def move_folder(self, name: str, to: str, last: str) -> None:
        """Each file is copied whole, `last` as the last. What is there already and the same stays untouched: two that
        move the same folder at once must not take away what the other has made. All is read before anything is
        removed."""
        files = {file: self.read(f"{name}/{file}") for file in self.names(name)}
        if last not in files:
            raise FileNotFoundError(errno.ENOENT, "it was taken away", self.path(f"{name}/{last}"))
        there = set(self.names(to))
        changed = [file for file in files if file != last and not self._holds(f"{to}/{file}", files[file], there)]
        if changed and last in there:
            self.remove(f"{to}/{last}")  # no reader must see it with other files than its own
        for file in (*changed, last):
            self.write(f"{to}/{file}", [files[file]])
        with suppress(OSError):  # it is done; what is left goes with the next collection
            self.remove(name)

    def _holds(self, name: str, data: bytes, there: set[str]) -> bool:
        return name.rsplit("/", 1)[-1] in there and self.read(name) == data

    def discard_folder(self, name: str, into: str, first: str) -> None:
        self.remove(f"{name}/{first}")
        self.remove(name)

    def path(self, name: str) -> str:
        return f"{self.root}/{name}" if name else self.root

    def seen_from(self, folder: str, name: str) -> str:
        # torch joins this to the checkpoint's URL with os.path.join, which lets an absolute path win; "../" would be
        # taken as it is written by a store that knows no folders.
        return "/" + self._at(name).lstrip("/")

    def remove_leftovers(self, folder: str) -> None:
        return None

    def _at(self, name: str) -> str:
        return f"{self._base}/{name}"


def sentence(error: OSError, root: str) -> str:
    """Describe what happened, to what, and what to do."""
    what = error.strerror or str(error) or type(error).__name__
    is_known = error.errno != errno.EIO or not is_url(root)  # of a URL, EIO is whatever its library says
    to_do = _TO_DO.get(error.errno or 0, _OTHERWISE) if is_known else _OTHERWISE
    where = error.filename if isinstance(error.filename, str) else root
    return f"{where}: {what}; {to_do}"


_OTHERWISE = "see whether it can be reached and written"

_TO_DO = {
    errno.ENOSPC: "free space there, lower --checkpoint-keep, or take another --checkpoint-dir",
    errno.EDQUOT: "the quota is used up: raise it, lower --checkpoint-keep, or take another --checkpoint-dir",
    errno.EROFS: "mount it writable, or take another --checkpoint-dir",
    errno.EACCES: "make it writable for this user, or take another --checkpoint-dir",
    errno.EPERM: "make it writable for this user, or take another --checkpoint-dir",
    errno.ENOENT: "it was taken away: mount or make it again",
    errno.ESTALE: "the file server lost it: mount it again",
    errno.EIO: "the device or the file server is failing: look at its log",
    errno.ENOTDIR: "a file is where a directory should be",
}


@contextmanager
def _as_os_errors(root: str) -> Iterator[None]:
    """Stores raise what their libraries raise; here all of it is an OSError with a text."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        raise OSError(errno.EIO, f"{type(error).__name__}: {error}", root) from error


def _write_all(file: Any, chunk: memoryview) -> int:  # noqa: ANN401 - io.FileIO
    view = chunk.cast("B") if chunk.nbytes else chunk
    done = 0
    while done < view.nbytes:
        written = file.write(view[done:])
        if written is None or written <= 0:
            raise OSError(errno.EIO, "nothing was written", file.name)
        done += written
    return view.nbytes


def _make_folder(path: Path) -> Path | None:
    """The folder that was there and holds what had to be made; None: nothing had to."""
    if path.is_dir():
        return None
    there = next((folder for folder in path.parents if folder.is_dir()), Path(path.anchor))
    path.mkdir(parents=True, exist_ok=True)
    return there


def _sync_folder(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # file systems that sync names by themselves
            raise
    finally:
        os.close(fd)
