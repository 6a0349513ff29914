"""A net of literal words in front of the automaton: which lines of a block a pattern matches.

Of nearly every pattern it is known which words its lines hold (`required`). They are looked for by hyperscan, at some
hundreds of megabytes a second from the first byte on. Lines with such a word are shown to a small automaton of the
patterns that need it; the large one of all patterns, which is built by the text it meets, sees nothing of it. Pure;
used by `look`.
"""

import contextlib
import importlib
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from everstep.knowledge.screening.required import Rarity, Word, required
from everstep.knowledge.screening.screen import Screen, without_bounds

_MAX_SHARE = 64
"""More hits than one in so many bytes: the net does not help with such text."""
_ALWAYS_READ = 64
_PIECE_BYTES = 128 << 10
_COMMON = 2
"""So everyday a word, of what `Rarity` says, is not looked for if its pattern can be."""
_NUM_PARTS = 16
_SMALL_BYTES = 16 << 20
"""Budget of one small automaton."""
_MAX_KNOWN = 4096
_MAX_KNOWN_BYTES = 512
"""So many harmless lines, of no more than that, are remembered: a warning that each step prints is often the same."""
_NORM = r"(?i:grad(?:ient)?[ _]?norm)\S{0,4}[ =:]+(?:nan|inf)\b"
_FROM_BEHIND = {_NORM: r"(?:[^f]|[^o]f|[^ ]of)[ =:](?:nan|inf)\b"}
"""What begins with words that stand in every line of training is looked for by its end, with what is before that where
the end is frequent too ("number of nan iterations"). It matches wherever the pattern does."""
_NOT_ALIKE = re.compile(r"\.[*+{]|\[[^\]]*\\[sS]|[$]|(?<!\[)\^|\(\?i\)|[^\x20-\x7e]")
"""Gaps, which cost too much here, and what hyperscan and RE2 may read differently."""
_SPACE = re.compile(r"\\[sS]")

Span = tuple[int, int]
Patterns = tuple[str, ...]


def everyday() -> tuple[str, ...]:
    """Words that logs of healthy jobs, configurations and listings of programs are full of, in four texts, the most
    frequent first."""
    text = Path(__file__).with_name("everyday.txt").read_text(encoding="ascii")
    return tuple(part.replace("\n", " ") for part in text.split("\n\n"))


def library() -> ModuleType | None:
    """hyperscan, loaded only to read much text. None: it cannot be loaded here, and the automaton reads everything."""
    try:
        return importlib.import_module("hyperscan")
    except ImportError:
        return None


class Net:
    """Words of many patterns. `rest`: patterns for which it has none, whose lines it does not find."""

    def __init__(self, patterns: Iterable[str]) -> None:
        self.rest: list[str] = []
        self._patterns: list[Patterns] = []  # that are shown a line together
        self._owners: list[int] = []  # by the number of what is looked for: whose it is
        self._small: dict[int, Screen] = {}
        self._harmless: dict[int, set[bytes]] = defaultdict(set)  # owner -> lines in which it found nothing
        self._num_known = 0
        self._database: Any = None
        self._hyperscan = library()
        if self._hyperscan is None:
            return
        words, plain = self._sorted_out(patterns)
        owned = [*map(tuple, words.values()), *((pattern,) for pattern in plain)]
        self._patterns = list(dict.fromkeys(owned))
        number = {patterns: at for at, patterns in enumerate(self._patterns)}
        self._owners = [number[patterns] for patterns in owned]
        with contextlib.suppress(self._hyperscan.HyperscanError):
            self._database = _compiled(self._hyperscan, list(words), plain)

    @property
    def is_usable(self) -> bool:
        return self._database is not None

    def _sorted_out(self, patterns: Iterable[str]) -> tuple[dict[Word, list[str]], list[str]]:
        """Words to look for, with their patterns; and patterns to look for as they are: theirs are everyday ones."""
        rarity = Rarity(everyday())
        words: dict[Word, list[str]] = defaultdict(list)
        plain: list[str] = []
        for pattern in patterns:
            needed = required(pattern, rarity)
            is_common = not needed or rarity.of(needed)[0] >= _COMMON
            if needed is not None and is_common and not _NOT_ALIKE.search(pattern):
                plain.append(pattern)
            elif needed:
                for word in needed:
                    words[word].append(pattern)
            else:
                self.rest.append(pattern)
        return words, plain

    def lines(self, data: bytes) -> tuple[list[Span], list[Span]]:
        """Lines that a pattern matches, without their line ends, and pieces in which there may be any of them."""
        lines: set[Span] = set()
        pieces: list[Span] = []
        view = memoryview(data)
        begin = 0
        while begin < len(data):
            end = data.rfind(b"\n", begin, begin + _PIECE_BYTES) + 1 or data.find(b"\n", begin) + 1 or len(data)
            hits = self._hits(view[begin:end])
            if hits is None:
                pieces.append((begin, end))
            elif hits:
                lines.update(self._verified(data, (begin, end), hits))
            begin = end
        return sorted(lines), pieces

    def _hits(self, piece: memoryview) -> list[tuple[int, int]] | None:
        """Where words end, and their numbers. None: too many to be of help, or another thread is scanning."""
        assert self._hyperscan is not None
        hits: list[tuple[int, int]] = []
        add = hits.append
        permits = iter([False] * (_ALWAYS_READ + len(piece) // _MAX_SHARE))

        def hit(number: int, _begin: int, end: int, _flags: int, _context: object) -> bool:
            add((end, number))
            return next(permits, True)  # true ends the scan

        try:
            self._database.scan(piece, match_event_handler=hit)
        except self._hyperscan.HyperscanError:
            return None
        return hits

    def _verified(self, data: bytes, piece: Span, hits: list[tuple[int, int]]) -> set[Span]:
        """`hits` are counted from the begin of the piece."""
        hits.sort()
        first, stop = piece
        end = -1
        line = (first, first)
        spans: dict[int, dict[Span, None]] = defaultdict(dict)
        for at, number in hits:
            if first + at > end:
                begin = data.rfind(b"\n", first, first + at) + 1 or first
                end = data.find(b"\n", first + at, stop)
                end = stop if end < 0 else end
                line = (begin, end)
            spans[self._owners[number]][line] = None
        found: set[Span] = set()
        for owner, lines in spans.items():
            net, known = self._small_of(owner), self._harmless[owner]
            left = [line for line in lines if line not in found]
            if known:
                left = [line for line in left if data[line[0] : line[1]] not in known]
            if left:
                matching = _matching(data, left, net.matters)
                found.update(matching)
                if len(matching) < len(left):
                    self._remember(known, data, set(left).difference(matching))
        return found

    def _remember(self, known: set[bytes], data: bytes, harmless: set[Span]) -> None:
        new = {data[begin:end] for begin, end in harmless if end - begin <= _MAX_KNOWN_BYTES}
        self._num_known += len(new)
        if self._num_known > _MAX_KNOWN:
            self._harmless.clear()
            self._num_known = 0
        else:
            known.update(new)

    def _small_of(self, owner: int) -> Screen:
        screen = self._small.get(owner)
        if screen is None:
            made = Screen((without_bounds(pattern).encode() for pattern in self._patterns[owner]), _SMALL_BYTES)
            screen = self._small[owner] = made
        return screen


def _matching(data: bytes, lines: list[Span], matters: Callable[[bytes], bool]) -> list[Span]:
    """Those of the lines that match: all at once, and where there is any, part by part."""
    if not matters(b"\n".join([data[begin:end] for begin, end in lines])):
        return []
    if len(lines) == 1:
        return lines
    size = -(-len(lines) // _NUM_PARTS)
    return [line for at in range(0, len(lines), size) for line in _matching(data, lines[at : at + size], matters)]


def _compiled(hyperscan: ModuleType, words: Sequence[Word], plain: Sequence[str]) -> object:
    expressions = [_escaped(word.text) for word in words] + [
        _spelled_out(_FROM_BEHIND.get(pattern, pattern)) for pattern in plain
    ]
    database = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
    database.compile(
        expressions=expressions,
        ids=list(range(len(expressions))),
        elements=len(expressions),
        flags=[hyperscan.HS_FLAG_CASELESS if word.folds else 0 for word in words] + [0] * len(plain),
    )
    return database


def _escaped(text: str) -> bytes:
    return "".join(char if char.isalnum() else f"\\x{ord(char):02x}" for char in text).encode()


def _spelled_out(pattern: str) -> bytes:
    """RE2's spaces are not those of hyperscan."""
    spaces = r"\t\n\f\r "
    return _SPACE.sub(lambda found: f"[{spaces}]" if found[0] == r"\s" else f"[^{spaces}]", pattern).encode()
