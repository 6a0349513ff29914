"""The report of NCCL's RAS (`ncclras`, since NCCL 2.24) as text: which ranks are missing, dead, behind or different.

The report prints the outliers rank by rank and the rest as a number of ranks. One sample proves little about ranks that
are behind, because ranks run ahead of each other; but it does prove which are missing or dead.
"""

import re

from everstep.analyzer.observations.claims import Kind, Named

SECTIONS = ("INCOMPLETE", "ERROR", "MISMATCH")
_SECTION = re.compile(rf"^#\d{{1,6}}-\d{{1,6}} \([0-9a-fA-F]{{1,16}}\) ({'|'.join(SECTIONS)})")
_MANY = re.compile(
    r"^\s{0,4}(\d{1,7}) ranks (?:have (?:launched up to operation (\d{1,12})|not (launched) any|status (\w+))"
    r"|reported (.{1,60}))"
)
_ONE = re.compile(
    r"^\s{0,4}Rank (\d{1,7})(?: has (?:launched up to operation (\d{1,12})|not (launched) any operations?"
    r"|status (\w+))| reported (.{1,60}?))?(?: --|$)"
)
_COUNTS = re.compile(r"different (\w+) operation counts")
_TOTAL = re.compile(r"^\s{1,8}\d{1,6}\s{1,12}\d{1,6}\s{1,12}\d{1,6}\s{1,12}(\d{1,7})\s{1,12}\d{1,7}\s*$")
_STAMPS = re.compile(r"^(?:\[[^\]]{0,60}\][: ]?\s?|\d{4}-\d\d-\d\d[T ]\S{1,40}\s)")


class RasText:
    """Feed it lines; other lines do no harm."""

    def __init__(self) -> None:
        self._named: list[Named] = []
        self._section = ""
        self._operation = ""
        self._most: int | None = None  # the operation up to which the many have launched
        self._dead = 0
        self.num_ranks: int | None = None
        self._after_summary = False

    def line(self, line: str) -> None:
        if self._section == "" and not self._after_summary and "#" not in line and "Job summary" not in line:
            return
        text = _STAMPS.sub("", line) if line[:1] == "[" or line[:4].isdigit() else line
        if "Job summary" in text:
            self._after_summary = True
        elif (found := _TOTAL.match(text)) and self.num_ranks is None:
            self.num_ranks = int(found[1])
        elif found := _SECTION.match(text):
            self._section, self._operation, self._most = found[1], "", None
        elif found := _COUNTS.search(text):
            self._operation, self._most = found[1], None
        elif found := _MANY.match(text):
            self._most = 0 if found[3] else int(found[2]) if found[2] else None
        elif self._section and (found := _ONE.match(text)):
            self._one(found)
        elif text.strip() and not text.startswith(" "):
            self._section = ""

    def _one(self, found: "re.Match[str]") -> None:
        rank = int(found[1])
        if self._section == "INCOMPLETE":
            self._add(Kind.SILENT, rank, "does not answer, or has ended: its communicator is incomplete")
        elif self._section == "ERROR":
            self._add(Kind.SILENT, rank, f"reports an error{f' ({found[5].strip()})' if found[5] else ''}")
        elif self._operation:
            count = 0 if found[3] else int(found[2]) if found[2] else None
            if count is not None and self._most is not None and count > self._most:
                self._add(Kind.MISMATCH, rank, f"launched {self._operation} #{count}, the others are at #{self._most}")
            else:
                at = "none" if count == 0 else f"up to #{count}" if count is not None else "fewer"
                self._add(Kind.BEHIND, rank, f"has launched {self._operation} {at}, fewer than the others")
        else:
            self._add(Kind.MISMATCH, rank, f"has status {found[4] or 'of its own'}, the others another")

    def _add(self, kind: Kind, rank: int, says: str) -> None:
        if len(self._named) < 10_000:
            self._named.append(Named(source="NCCL RAS", kind=kind, ranks=(rank,), says=says))

    def named(self) -> tuple[Named, ...]:
        return tuple(self._named)
