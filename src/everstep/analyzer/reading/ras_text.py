"""The report of NCCL's RAS (`ncclras`, since NCCL 2.24) as text: which ranks are missing, dead, behind or different.

The report prints the largest group as a number of ranks, and the ranks of a small group below the line of that group,
without a number of their own. One sample proves little about ranks that are behind, because ranks run ahead of each
other; but it does prove which are missing or dead.
"""

import re
from dataclasses import dataclass, field

from everstep.analyzer.observations.claims import Kind, Named
from everstep.analyzer.observations.words import ranks_text, verb

SECTIONS = ("INCOMPLETE", "ERROR", "MISMATCH")
_SECTION = re.compile(rf"^#\d{{1,6}}-\d{{1,6}} \(([0-9a-fA-F]{{1,16}})\) ({'|'.join(SECTIONS)})")
_SAID = (
    r"(?:(?:has|have) (?:launched up to operation (?P<count>\d{1,12})|not (?P<none>launched) any(?: operations?)?"
    r"|status (?P<status>\w+))|reported (?P<error>.{1,60}?))"
)
_MANY = re.compile(rf"^\s{{0,4}}(?P<num>\d{{1,7}}) ranks? {_SAID}\s*$")
_ONE = re.compile(rf"^\s{{0,4}}Rank (?P<rank>\d{{1,7}})(?: {_SAID})?(?: --|\s*$)")
_COUNTS = re.compile(r"different (\w+) operation counts")
_TOTAL = re.compile(r"^\s{1,8}\d{1,6}\s{1,12}\d{1,6}\s{1,12}\d{1,6}\s{1,12}(\d{1,7})\s{1,12}\d{1,7}\s*$")
_STAMPS = re.compile(r"^(?:\[[^\]]{0,60}\][: ]?\s?|\d{4}-\d\d-\d\d[T ]\S{1,40}\s)")
_MAX_NAMED = 10_000
_EARLIER = ("INIT", "RUNNING", "FINALIZE")
"""States of a communicator in the order in which a rank goes through them."""


@dataclass(slots=True)
class _Group:
    """Ranks of one communicator of which the report says the same."""

    count: int | None = None
    status: str = ""
    error: str = ""
    num: int = 0
    ranks: list[int] = field(default_factory=list)  # those that the report lists


class RasText:
    """Feed it lines; other lines do no harm."""

    def __init__(self) -> None:
        self._named: dict[tuple[Kind, tuple[int, ...]], Named] = {}
        self._section = ""
        self._communicator = ""
        self._operation = ""
        self._groups: list[_Group] = []
        self._seen: set[tuple[str, str, int, tuple[int, ...]]] = set()
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
            self._close()
            self._communicator, self._section, self._operation = found[1], found[2], ""
        elif found := _COUNTS.search(text):
            self._close()
            self._operation = found[1]
        elif found := _MANY.match(text):
            self._groups.append(_group(found, int(found["num"])))
        elif self._section and (found := _ONE.match(text)):
            self._one(found)
        elif text.strip() and not text.startswith(" "):
            self._close()
            self._section = ""

    def _one(self, found: "re.Match[str]") -> None:
        """A rank with a word of its own, or one of the group whose line stands above."""
        own = _group(found, 0)
        if self._groups and own == _Group():
            group = self._groups[-1]
        else:
            group = next((each for each in self._groups if _is_same(each, own)), own)
            group.num += 1
            if group is own:
                self._groups.append(own)
        if len(group.ranks) < _MAX_NAMED:
            group.ranks.append(int(found["rank"]))

    def _close(self) -> None:
        groups, self._groups = self._groups, []
        if self._section == "INCOMPLETE":
            for group in groups:
                self._add(Kind.SILENT, group.ranks, "did not answer, or had ended: the communicator is incomplete")
        elif self._section == "ERROR":
            for group in groups:
                error = f" ({group.error.strip()})" if group.error else ""
                self._add(Kind.SILENT, group.ranks, f"reported an error{error}")
        elif self._section and len(groups) > 1:
            self.num_ranks = max(self.num_ranks or 0, sum(group.num for group in groups))
            self._compare(groups)

    def _compare(self, groups: list[_Group]) -> None:
        counted = [(group.count, group) for group in groups if group.count is not None]
        if len(counted) < 2:
            odd = min(groups, key=lambda group: (group.num, _order_of(group.status)))
            usual = max((group for group in groups if group is not odd), key=lambda group: group.num)
            says = f"had status {odd.status or 'of its own'}, the others {usual.status or 'another'}"
            self._add(Kind.BEHIND if odd.status == _EARLIER[0] else Kind.SILENT, odd.ranks, says)
            return
        (least, behind), (most, _) = min(counted, key=lambda c: c[0]), max(counted, key=lambda c: c[0])
        is_small = 2 * behind.num <= sum(group.num for group in groups)
        ranks = tuple(sorted(behind.ranks)) if is_small and len(behind.ranks) == behind.num else ()
        key = self._communicator, self._operation, least, ranks
        stands = key in self._seen
        self._seen.add(key)
        done = f"up to #{least} only" if least else "none"
        says = f"had launched {self._operation} {done}, the furthest up to #{most}"
        if not ranks:
            ahead = sorted(rank for count, group in counted if count > least for rank in group.ranks)
            further = f"; {ranks_text(ahead)} {verb(ahead, 'is', 'are')} further, and not to blame" if ahead else ""
            says = f"{behind.num} ranks, which the report does not list, {says}{further}"
        if most - least == 1 and not stands:
            says += " (one apart is normal while a job communicates: ask again some seconds later)"
        self._add(Kind.BEHIND, ranks, says, is_sure=stands or most - least > 1)

    def _add(self, kind: Kind, ranks: "list[int] | tuple[int, ...]", says: str, *, is_sure: bool = True) -> None:
        if len(self._named) < _MAX_NAMED and (ranks or kind is Kind.BEHIND):
            found = Named(source="NCCL RAS", kind=kind, ranks=tuple(ranks), says=says, is_sure=is_sure)
            self._named[kind, found.ranks] = found

    def named(self) -> tuple[Named, ...]:
        self._close()
        return tuple(self._named.values())


def _group(found: "re.Match[str]", num: int) -> _Group:
    count = 0 if found["none"] else int(found["count"]) if found["count"] else None
    return _Group(count=count, status=found["status"] or "", error=found["error"] or "", num=num)


def _is_same(one: _Group, other: _Group) -> bool:
    return (one.count, one.status, one.error) == (other.count, other.status, other.error)


def _order_of(status: str) -> int:
    return _EARLIER.index(status) if status in _EARLIER else len(_EARLIER)
