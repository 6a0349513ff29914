"""Which literal words a text has to hold so that a pattern of RE2 can match it.

A reader of the part of RE2's syntax that signatures use. Whatever it does not know, it knows nothing of: such a pattern
has no required words, and its texts always go to the automaton. Which of several words is taken decides about speed
alone. Pure; used by `net`.
"""

import itertools
import re
from dataclasses import dataclass
from typing import NamedTuple

MAX_EXACT = 100
"""So many different texts of a part are followed further."""
MAX_WORDS = 200
"""A pattern that needs one of more words than that is left to the automaton."""
_SHORT = 3
_MAX_CLASS = 16
_LONG_NUMBER = 5
_TO_LAST_ASCII = 127

_COUNT = re.compile(r"\{(\d{1,6})(?:,(\d{0,6}))?\}")
_CLASS = re.compile(r"\[\^?\]?(?:\\.|[^\]\\])*\]")
_POSIX = re.compile(r"\[:\^?\w+:\]")
_SIMPLE_CLASS = re.compile(r"\[(?:\w-\w|[\w ,.:;=#/]){1,16}\]", re.ASCII)
_RUN = re.compile(r"[A-Za-z_]{2,}")
_MARKS = re.compile(r"[^\w ]")
_PLAIN = re.compile(r"[\w ,:;/=<>\"'@!%&~#-]{1,200}(?![*+?{])", re.ASCII)
"""Characters that mean themselves, but for the last one before a sign of repetition."""
_EDGES = "bBA"
_ONE_OF_MANY = "DwWsS"


class Word(NamedTuple):
    """A literal text; `folds`: in any case, and then written in small letters."""

    text: str
    folds: bool = False


def _joined(first: Word, second: Word) -> Word:
    folds = first[1] or second[1]
    text = first[0] + second[0]
    return Word(text.lower() if folds else text, folds)


Words = frozenset[Word]
_EMPTY: Words = frozenset({Word("")})


class _UnknownSyntaxError(Exception):
    """This reader does not know what it means."""


@dataclass(frozen=True, slots=True)
class _Part:
    """What is known of the texts that a part of a pattern matches."""

    exact: Words | None = None  # all of them, if they are few
    needs: Words | None = None  # one of these is in each of them


_ANYTHING = _Part()
_DIGIT = _Part(frozenset(Word(digit) for digit in "0123456789"))
_NOTHING = _Part(_EMPTY)


def required(pattern: str, rarity: "Rarity") -> Words | None:
    """Words of which each text that the pattern matches holds at least one; empty if there are none. None: the pattern
    has syntax that is not known here."""
    try:
        return _Reader(pattern, rarity).read()
    except (_UnknownSyntaxError, IndexError, RecursionError):
        return None


class Rarity:
    """Which of several sets of words is best to look for. `everyday`: texts full of words that are no good to look for
    if there are others, the worst first."""

    def __init__(self, everyday: tuple[str, ...] = ()) -> None:
        self._texts = everyday
        self._folded = tuple(text.lower() for text in everyday)
        self._known: dict[Word, int] = {}

    def of(self, words: Words) -> tuple[int, int, int]:
        """The smaller, the rarer. The first number is 0 for words that are in no everyday text."""
        return max(map(self._commonness, words)), -min(len(word.text) for word in words), len(words)

    def _commonness(self, word: Word) -> int:
        """How common a phrase is: by its rarest word, and by the number of words."""
        found = self._known.get(word)
        if found is None:
            found = self._known[word] = self._look_up(word)
        return found

    def _look_up(self, word: Word) -> int:
        texts = self._folded if word.folds else self._texts
        runs = _RUN.findall(word.text) if len(word.text) >= _SHORT else []
        if not runs:
            return max(0, len(texts) + 4 - len(word.text)) if len(word.text) < _LONG_NUMBER else 1
        rarest = min(self._place(run, texts) for run in runs)
        is_marked = _MARKS.search(word.text) is not None
        return max(self._place(word.text, texts), rarest - 2 * (len(runs) - 1) - is_marked)

    def _place(self, text: str, texts: tuple[str, ...]) -> int:
        return next((len(texts) - i for i, everyday in enumerate(texts) if text in everyday), 0)


class _Reader:
    def __init__(self, pattern: str, rarity: Rarity) -> None:
        self._text = pattern
        self._at = 0
        self._folds = False
        self._rarity = rarity

    def read(self) -> Words:
        part = self._alternatives()
        if self._at != len(self._text):
            raise _UnknownSyntaxError
        return self._best(part) or frozenset()

    def _next(self) -> str:
        return self._text[self._at : self._at + 1]

    def _alternatives(self) -> _Part:
        parts = [self._sequence()]
        while self._next() == "|":
            self._at += 1
            parts.append(self._sequence())
        if len(parts) == 1:
            return parts[0]
        texts = [part.exact for part in parts]
        exact = frozenset(itertools.chain.from_iterable(t for t in texts if t is not None))
        chosen = [self._best(part) for part in parts]
        needs = frozenset(itertools.chain.from_iterable(c for c in chosen if c is not None))
        return _Part(
            None if None in texts or len(exact) > MAX_EXACT else exact,
            None if None in chosen or len(needs) > MAX_WORDS else needs,
        )

    def _sequence(self) -> _Part:
        parts = []
        while self._next() not in ("", "|", ")"):
            run = _PLAIN.match(self._text, self._at)
            if run is not None:
                self._at = run.end()
                folds = self._folds and run[0] != run[0].swapcase()
                parts.append(_Part(frozenset({Word(run[0].lower() if folds else run[0], folds)})))
            else:
                parts += self._repeated(self._one())
        known, current, is_whole = [], _EMPTY, True
        for part in parts:
            if part.needs is not None:
                known.append(part.needs)
            if part.exact is None:
                known.append(current)
                current, is_whole = _EMPTY, False
                continue
            is_long = part is _DIGIT and min(len(word.text) for word in current) >= _SHORT
            joined = frozenset(_joined(a, b) for a in current for b in part.exact) if not is_long else current
            if is_long:
                known.append(current)
                current, is_whole = _EMPTY, False
            elif len(joined) > MAX_EXACT:
                known.append(current)
                current, is_whole = part.exact, False
            else:
                current = joined
        if is_whole:
            return _Part(current, self._rarest(known))
        return _Part(None, self._rarest([*known, current]))

    def _repeated(self, part: _Part) -> list[_Part]:
        """The part as often as the signs behind it say."""
        sign, least, most = self._next(), 1, 1
        count = _COUNT.match(self._text, self._at) if sign == "{" else None
        if sign and sign in "*+?":
            self._at += 1
            least, most = int(sign == "+"), 1 if sign == "?" else 2
        elif count is not None:
            self._at = count.end()
            least = int(count[1])
            most = least if count[2] is None else int(count[2] or least + 1)
        else:
            return [part]
        if self._next() == "?":
            self._at += 1
        if self._next() in ("*", "+", "?") or _COUNT.match(self._text, self._at):
            raise _UnknownSyntaxError
        if least == 0:
            return [_Part(part.exact | _EMPTY) if most == 1 and part.exact is not None else _ANYTHING]
        first = [part] * min(least, _SHORT)
        return first if most == least <= _SHORT else [*first, _ANYTHING]

    def _one(self) -> _Part:
        char = self._text[self._at]
        if char == "(":
            return self._group()
        if char == "[":
            return self._class()
        self._at += 1
        if char in "^$":
            return _NOTHING
        if char == ".":
            return _ANYTHING
        if char in "*+?":
            raise _UnknownSyntaxError
        return self._escaped() if char == "\\" else self._literal(char)

    def _group(self) -> _Part:
        folds = self._folds
        if self._text.startswith("(?i)", self._at):
            self._at += 4
            self._folds = True  # up to the end of the group that it stands in
            return _NOTHING
        if self._text.startswith("(?i:", self._at):
            self._at += 4
            self._folds = True
        elif self._text.startswith("(?:", self._at):
            self._at += 3
        elif self._text.startswith("(?", self._at):
            raise _UnknownSyntaxError
        else:
            self._at += 1
        part = self._alternatives()
        if self._next() != ")":
            raise _UnknownSyntaxError
        self._at += 1
        self._folds = folds
        return part

    def _class(self) -> _Part:
        whole = _CLASS.match(self._text, self._at)
        if whole is None or _POSIX.search(whole[0]):
            raise _UnknownSyntaxError
        self._at = whole.end()
        if not _SIMPLE_CLASS.fullmatch(whole[0]):
            return _ANYTHING
        chars = set(re.sub(r"\w-\w", lambda span: _between(span[0][0], span[0][2]), whole[0][1:-1]))
        if len(chars) > _MAX_CLASS:
            return _ANYTHING
        return _Part(frozenset(Word(c.lower() if self._folds else c, self._folds) for c in chars))

    def _escaped(self) -> _Part:
        char = self._text[self._at]
        self._at += 1
        if char in _EDGES:
            return _NOTHING
        if char == "d":
            return _DIGIT
        if char in _ONE_OF_MANY:
            return _ANYTHING
        if char == "x":
            code = self._text[self._at : self._at + 2]
            self._at += 2
            if not re.fullmatch(r"[0-9a-fA-F]{2}", code):
                raise _UnknownSyntaxError
            return self._literal(chr(int(code, 16)))
        if char == "t":
            return self._literal("\t")
        if char.isalnum() or ord(char) > _TO_LAST_ASCII:
            raise _UnknownSyntaxError
        return self._literal(char)

    def _literal(self, char: str) -> _Part:
        if ord(char) > _TO_LAST_ASCII or char == "\n":
            raise _UnknownSyntaxError
        folds = self._folds and char.isalpha()
        return _Part(frozenset({Word(char.lower() if folds else char, folds)}))

    def _best(self, part: _Part) -> Words | None:
        return self._rarest([words for words in (part.exact, part.needs) if words is not None])

    def _rarest(self, known: list[Words]) -> Words | None:
        usable = [words for words in known if words and Word("") not in words and len(words) <= MAX_EXACT]
        return min(usable, key=self._rarity.of, default=None)


def _between(first: str, last: str) -> str:
    return "".join(map(chr, range(ord(first), ord(last) + 1)))
