"""The archive of a bundle: each text goes through the mask, and a list says what is in it, what is masked, what is not.

Links are never followed: a rank can put one where its log was.
"""

import io
import os
import tarfile
import time
from pathlib import Path

import msgspec

from everstep.linux.regular import regular
from everstep.report.handing.masking import Mask
from everstep.report.parts.units import plural, size

TAIL_BYTES = 256 << 10
"""Limit for a log: its end is kept."""

MOST_BYTES = 1 << 20
"""Limit for another file; a larger one is left out, because a program cannot read half of it."""

MAX_FILES = 400


class Packed(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    size_bytes: int
    masked: int  # places
    note: str = ""


class Bundle:
    """In memory until it is whole: a bundle has megabytes, not gigabytes."""

    def __init__(self, name: str, mask: Mask) -> None:
        self._name = name
        self._mask = mask
        self._data = io.BytesIO()
        self._tar = tarfile.open(fileobj=self._data, mode="w:gz")  # noqa: SIM115  (closed by `whole`)
        self.packed: list[Packed] = []
        self.left_out: list[tuple[str, str]] = []

    def leave_out(self, what: str, why: str) -> None:
        self.left_out.append((what, why))

    def add(self, name: str, text: str, note: str = "") -> None:
        before = self._mask.number
        data = self._mask(text).encode(errors="replace")
        self.packed.append(Packed(name=name, size_bytes=len(data), masked=self._mask.number - before, note=note))
        self._write(name, data)

    def add_json(self, name: str, value: object) -> None:
        before = self._mask.number
        shown = self._mask.deep(msgspec.to_builtins(value))
        data = msgspec.json.format(msgspec.json.encode(shown), indent=2)
        self.packed.append(Packed(name=name, size_bytes=len(data), masked=self._mask.number - before))
        self._write(name, data)

    def add_file(self, path: Path, name: str, *, only_tail: bool = False) -> None:
        """Nothing where there is none."""
        if len(self.packed) >= MAX_FILES:
            self.leave_out(name, f"more than {MAX_FILES} files")
            return
        try:
            opened = regular(path, follow=False)
        except FileNotFoundError:
            return
        except OSError as error:
            self.leave_out(name, "a link" if path.is_symlink() else f"cannot be read: {error.strerror}")
            return
        with opened as file:
            found = os.fstat(file.fileno())
            if found.st_size > MOST_BYTES and not only_tail:
                self.leave_out(name, f"{size(found.st_size)}, the limit is {size(MOST_BYTES)}")
                return
            cut = max(0, found.st_size - TAIL_BYTES) if only_tail else 0
            file.seek(cut)
            data = file.read(MOST_BYTES)
        self.add(name, data.decode(errors="replace"), f"its end; {size(cut)} before it are left out" if cut else "")

    def listing(self) -> str:
        lines = [f"{self._name}: what is in it, what was masked, what was left out.", "", "In it:"]
        for each in self.packed:
            masked = f"   {plural(each.masked, 'place')} masked" if each.masked else ""
            lines.append(
                f"  {each.name:<44} {size(each.size_bytes):>9}{masked}{'   ' + each.note if each.note else ''}"
            )
        lines += ["", "Left out:", *(f"  {what:<44} {why}" for what, why in self.left_out)]
        lines += [
            "",
            "Masked: values of the run's keys, tokens and variables, of variables of this shell whose name speaks of a",
            "secret, and whatever looks like a key, a password or a token. A secret that looks like nothing and that",
            "is not known here is not found: read the logs before you send them, or pack again with --no-logs.",
        ]
        return "\n".join(lines) + "\n"

    def whole(self) -> bytes:
        self._write("LISTING.txt", self.listing().encode(errors="replace"))
        self._tar.close()
        return self._data.getvalue()

    def _write(self, name: str, data: bytes) -> None:
        entry = tarfile.TarInfo(f"{self._name}/{name}")
        entry.size, entry.mode, entry.mtime = len(data), 0o600, int(time.time())
        self._tar.addfile(entry, io.BytesIO(data))
