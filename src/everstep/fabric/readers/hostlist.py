"""Bracketed lists of names as Slurm and topograph write them: `n[0-15,20]`, `rack[1-2]-n[01-16]`, `a,b`."""

import itertools
import re

from everstep.fabric.topology.values import FabricError

MAX_NAMES = 1_000_000
MAX_NAME_CHARS = 255
_PART = re.compile(r"\[([^\[\]]*)\]")
_RANGE = re.compile(r"([0-9]{1,18})-([0-9]{1,18})$|([0-9]{1,18})$")


def expand(text: str, source: str) -> list[str]:
    """All names, in order. Raises FabricError."""
    names: list[str] = []
    for piece in _split(text, source):
        parts = _PART.split(piece)
        if any(bracket in part for part in parts for bracket in "[]"):
            raise FabricError(f"{source}: host list {text[:80]!r}: brackets do not match")
        choices: list[list[str]] = []
        total = 1
        for number, part in enumerate(parts):
            choices.append(_numbers(part, text, source) if number % 2 else [part])
            total *= len(choices[-1])
            if len(names) + total > MAX_NAMES:
                raise FabricError(f"{source}: host list {text[:80]!r}: more than {MAX_NAMES} names")
        if sum(max(map(len, each)) for each in choices) > MAX_NAME_CHARS:
            raise FabricError(f"{source}: host list {text[:80]!r}: a name of more than {MAX_NAME_CHARS} characters")
        names += ["".join(each) for each in itertools.product(*choices)]
    return names


def _split(text: str, source: str) -> list[str]:
    """Split at the commas outside brackets."""
    pieces, depth, start = [], 0, 0
    for place, character in enumerate(text):
        depth += (character == "[") - (character == "]")
        if depth not in (0, 1):
            raise FabricError(f"{source}: host list {text[:80]!r}: brackets do not match")
        if character == "," and depth == 0:
            pieces.append(text[start:place])
            start = place + 1
    if depth:
        raise FabricError(f"{source}: host list {text[:80]!r}: brackets do not match")
    return [piece.strip() for piece in [*pieces, text[start:]] if piece.strip()]


def _numbers(text: str, whole: str, source: str) -> list[str]:
    found: list[str] = []
    for part in text.split(","):
        match = _RANGE.match(part.strip())
        if match is None:
            raise FabricError(f"{source}: host list {whole[:80]!r}: {part[:40]!r} is not a number or a range")
        first, last, single = match.groups()
        if single is not None:
            found.append(single)
            continue
        if int(last) < int(first) or int(last) - int(first) + len(found) >= MAX_NAMES:
            raise FabricError(f"{source}: host list {whole[:80]!r}: {part[:40]!r} is not a usable range")
        found += [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
    return found


def compress(names: list[str]) -> str:
    """`n[0-3,7]` for names that end with digits, as Slurm reads them. The order is lost: Slurm has none."""
    groups: dict[tuple[str, int], list[int]] = {}  # head, and the number of digits if they begin with 0
    plain: list[str] = []
    for name in dict.fromkeys(names):
        match = re.fullmatch(r"(.*?)(\d{1,18})", name)
        if match is None:
            plain.append(name)
            continue
        head, digits = match.groups()
        width = len(digits) if digits[0] == "0" and len(digits) > 1 else 0
        groups.setdefault((head, width), []).append(int(digits))
    for (head, width), numbers in groups.items():
        ranges = _ranges(sorted(numbers), width)
        plain.append(f"{head}{ranges[0]}" if len(numbers) == 1 else f"{head}[{','.join(ranges)}]")
    return ",".join(plain)


def _ranges(numbers: list[int], width: int) -> list[str]:
    found: list[str] = []
    start = 0
    for place in range(1, len(numbers) + 1):
        if place == len(numbers) or numbers[place] != numbers[place - 1] + 1:
            first, last = (str(number).zfill(width) for number in (numbers[start], numbers[place - 1]))
            found.append(first if first == last else f"{first}-{last}")
            start = place
    return found
