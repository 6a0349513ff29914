"""The glossary and the code say the same words: each term is used, and no word that the glossary rules out is."""

import re
from functools import cache
from pathlib import Path

import pytest
from printed import names, printed, sources

PAGE = Path(__file__).parents[3] / "docs/glossary.md"
IN_CODE = "names in the code"
"""In the table: what is printed is still held to the rule."""


def _rows(number: int) -> list[list[str]]:
    """Of the first or the second table of the page."""
    tables = re.findall(r"(?:^\|.*\n)+", PAGE.read_text(), re.MULTILINE)
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in tables[number].splitlines()[2:]]


TERMS = [re.sub(r"\s*\(.*\)", "", row[0]) for row in _rows(0)]
BANNED = {word.strip(): row[2] for row in _rows(1) for word in row[0].split(",")}


@cache
def _text() -> str:
    """All of the code as words, each after one space: a term is in it, or its plural."""
    return " ".join(_words(text) for text in sources().values())


@cache
def _names() -> dict[str, str]:
    """File -> its names, one a line, as words: "HangDetector" and "hang_detector" are both "hang detector"."""
    return {where: "\n".join(sorted({_words(name) for name in names(where)})) for where in sources()}


def _words(name: str) -> str:
    return " ".join(re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+", name)).lower()


def _pattern(words: str) -> re.Pattern[str]:
    """With a plural and with the spellings of names."""
    return re.compile(rf"(?<![a-z]){re.escape(words).replace(chr(92) + ' ', '[ _-]')}(?:e?s)?(?![a-z])", re.IGNORECASE)


def test_the_page_has_both_tables() -> None:
    assert len(TERMS) > 90
    assert len(BANNED) > 10
    assert len(TERMS) == len(_rows(0))
    assert [row[0].lower() for row in _rows(0)] == sorted(row[0].lower() for row in _rows(0)), "in order"


@pytest.mark.parametrize("term", sorted(set(TERMS)))
def test_each_term_is_used_in_the_code(term: str) -> None:
    assert f" {_words(term)}" in _text(), f"nothing uses {term}: remove its row"


@pytest.mark.parametrize("word", [word for word, stays in BANNED.items() if IN_CODE not in stays])
def test_no_name_has_a_word_that_is_ruled_out(word: str) -> None:
    pattern = _pattern(word)
    found = [f"{where}: {match[0]}" for where, names in _names().items() if f"`{where}`" not in BANNED[word]
             for match in pattern.finditer(names)]  # fmt: skip
    assert not found, found


@pytest.mark.parametrize("word", BANNED)
def test_nothing_printed_has_a_word_that_is_ruled_out(word: str) -> None:
    pattern = _pattern(word)
    found = [f"{each.where}: {each.text[:150]}" for each in printed()
             if f"`{each.where.split(':')[0]}`" not in BANNED[word] and pattern.search(each.text)]  # fmt: skip
    assert not found, "\n".join(found)


def test_each_exception_is_needed_and_has_a_reason() -> None:
    for word, _, stays, why in _rows(1):
        assert bool(stays) <= bool(why), word
        for where in re.findall(r"`(.+?)`", stays):
            assert _pattern(word).search(sources()[where]), f"{word}: {where} does without"


@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("control group", "ControlGroups"),
        ("control group", "control_group"),
        ("watch", "watches"),
        ("stuck", "is_stuck"),
    ],
)
def test_words_are_found_in_names(word: str, name: str) -> None:
    assert _pattern(word).search(_words(name))
