"""Rank and generation from a file's path: `gen-0/rank-2/stderr.log`, `nccl_trace_rank_2`, `stack-rank-2-pid-991.txt`.

Pure. A number that is not called a rank counts as one only where several files differ in nothing but that number.
"""

import re
from collections import defaultdict
from collections.abc import Iterable

_RANK = re.compile(r"(?<![a-z])(?:global_?)?rank[-_ ]?(\d{1,7})(?!\d)", re.I)
_GENERATION = re.compile(r"(?<![a-z])gen(?:eration)?[-_ ]?(\d{1,7})(?!\d)", re.I)
_TRAILING = re.compile(r"^(.*?)(\d{1,7})((?:\.[A-Za-z]\w*)*)$")
MAX_GAP = 64
"""Numbers that are ranks lie close together; process ids and dates do not."""


def rank_in(path: str) -> int | None:
    """The innermost part of the path that says "rank"."""
    for part in reversed(path.split("/")):
        found = _RANK.search(part)
        if found:
            return int(found[1])
    return None


def generation_in(path: str) -> int | None:
    for part in reversed(path.split("/")):
        found = _GENERATION.search(part)
        if found:
            return int(found[1])
    return None


def numbered(paths: Iterable[str]) -> dict[str, int]:
    """Ranks of files that only count: fr_0.json, fr_1.json. A family of files whose numbers lie far apart has none."""
    families: defaultdict[tuple[str, str], dict[str, int]] = defaultdict(dict)
    for path in paths:
        if rank_in(path) is not None:
            continue
        folder, _, name = path.rpartition("/")
        found = _TRAILING.match(name)
        if found:
            families[f"{folder}/{found[1]}", found[3]][path] = int(found[2])
    ranks: dict[str, int] = {}
    for family in families.values():
        numbers = set(family.values())
        if 1 < len(numbers) == len(family) and max(numbers) < MAX_GAP * len(numbers):
            ranks.update(family)
    return ranks
