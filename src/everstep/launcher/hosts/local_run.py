"""The directory in which a host that joined keeps its part of a run: folders like the run's own, and spec.json."""

import os
import re
import socket
from pathlib import Path

import msgspec

from everstep.controller.record.spec_file import SPEC_NAME, SpecFile
from everstep.errors import JournalError, WireError
from everstep.journal.beside.private import make_private
from everstep.journal.runs import home
from everstep.linux.files import write_whole
from everstep.wire.joining import Admitted


class LocalRun(msgspec.Struct, frozen=True, kw_only=True):
    path: Path
    file: SpecFile
    spec_bytes: bytes
    number: int  # of this host
    endpoint: str

    @classmethod
    def make(cls, admitted: Admitted, endpoint: str) -> "LocalRun":
        """Raises WireError for a specification that this version cannot use, JournalError, ConfigError."""
        try:
            file = msgspec.json.decode(admitted.spec, type=SpecFile)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise WireError(f"the run's specification cannot be used by this version: {error}") from error
        name = re.sub(r"[^A-Za-z0-9._-]", "-", f"{file.run}-{file.attempt}-{socket.gethostname()}-{os.getpid()}")
        path = home() / "hosts" / name
        try:
            make_private(path, is_run=False)
            write_whole(path / SPEC_NAME, admitted.spec, mode=0o600)
        except OSError as error:
            raise JournalError(f"cannot make {path}: {error.strerror}. Choose another EVERSTEP_HOME") from error
        return cls(path=path, file=file, spec_bytes=admitted.spec, number=admitted.number, endpoint=endpoint)
