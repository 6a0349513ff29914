"""Files of one rank in one generation: its log, which stays in the run directory, and its error report."""

import contextlib
import logging
import os
from pathlib import Path

import msgspec

from everstep.model.spec import STDERR, STDOUT

STDOUT_NAME, STDERR_NAME = "stdout.log", "stderr.log"

_log = logging.getLogger(__name__)


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
        of this rank in --log-dir; those of `streams` are files there, and links here. What there is no room for costs
        the error report and the links, not the rank: the spool makes the logs' folder when it can."""
        folder = logs / f"gen-{generation}" / f"rank-{rank}"
        stdout, stderr = folder / STDOUT_NAME, folder / (STDOUT_NAME if is_one else STDERR_NAME)
        made = cls(stdout=stdout, stderr=stderr, error_file=errors / f"gen-{generation}" / f"rank-{rank}.json")
        try:
            made._make(published, streams)
        except OSError as error:
            _log.warning("directories of rank %d in generation %d: %s", rank, generation, error)
        return made

    def _make(self, published: Path | None, streams: int) -> None:
        """Raises OSError."""
        self.stdout.parent.mkdir(parents=True, exist_ok=True)
        self.error_file.parent.mkdir(parents=True, exist_ok=True)
        self.error_file.unlink(missing_ok=True)
        if self.is_one:
            with contextlib.suppress(FileExistsError):
                self.stdout.with_name(STDERR_NAME).symlink_to(STDOUT_NAME)  # for people, and for what reads either
        if published is not None:
            published.mkdir(parents=True, exist_ok=True)
            for bit, path in ((STDOUT, self.stdout), (STDERR, self.stderr)):
                if streams & bit:
                    with contextlib.suppress(FileExistsError):
                        path.symlink_to(published / path.name)
