"""Files of one rank in one generation: its log, which stays in the run directory, and its error report."""

import contextlib
import os
from pathlib import Path

import msgspec

from everstep.model.spec import STDERR, STDOUT

STDOUT_NAME, STDERR_NAME = "stdout.log", "stderr.log"


def is_other_name(path: Path) -> bool:
    """Whether this stream is one with the rank's other one, and is read there."""
    try:
        return os.readlink(path) == STDOUT_NAME  # noqa: PTH115 - as it is written, not where it leads
    except OSError:
        return False


class Paths(msgspec.Struct, frozen=True, kw_only=True):
    """`stdout` and `stderr` are the same where the two streams are one."""

    stdout: Path
    stderr: Path
    error_file: Path

    @property
    def is_one(self) -> bool:
        return self.stdout == self.stderr

    @classmethod
    def prepare(
        cls,
        *,
        logs: Path,
        errors: Path,
        generation: int,
        rank: int,
        is_one: bool = False,
        published: Path | None = None,
        streams: int = 0,
    ) -> "Paths":
        """Make the folders; an error report of an earlier life of this generation goes. `published`: torchrun's folder
        of this rank in --log-dir; those of `streams` are files there, and links here. Raises OSError."""
        folder = logs / f"gen-{generation}" / f"rank-{rank}"
        folder.mkdir(parents=True, exist_ok=True)
        error_file = errors / f"gen-{generation}" / f"rank-{rank}.json"
        error_file.parent.mkdir(parents=True, exist_ok=True)
        error_file.unlink(missing_ok=True)
        stdout, stderr = folder / STDOUT_NAME, folder / STDERR_NAME
        if is_one:
            with contextlib.suppress(FileExistsError):
                stderr.symlink_to(stdout.name)  # for people, and for what reads either
            stderr = stdout
        if published is not None:
            published.mkdir(parents=True, exist_ok=True)
            for bit, path in ((STDOUT, stdout), (STDERR, stderr)):
                if streams & bit:
                    with contextlib.suppress(FileExistsError):
                        path.symlink_to(published / path.name)
        return cls(stdout=stdout, stderr=stderr, error_file=error_file)
