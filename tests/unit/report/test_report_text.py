"""How numbers, times, tables and colours come out."""

import io
import re
from pathlib import Path

import pytest

from everstep.analyzer.observations.words import fold
from everstep.core.decide import recovery
from everstep.core.faults import anomalies, hangs, late
from everstep.goodput.buckets import Bucket
from everstep.knowledge.codes import CODES
from everstep.report.goodput import BAR_WIDTH, bar, render_glossary
from everstep.report.incidents.explain import KNOBS, render_code
from everstep.report.parts.ansi import PLAIN, Paint, Style, printable, style_for
from everstep.report.parts.layout import fields, table
from everstep.report.parts.units import ago, clock, count, duration, percent, plural, short_stamp, stamp


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "—"),
        (float("nan"), "—"),
        (0.0, "0s"),
        (0.004, "4ms"),
        (0.25, "0.25s"),
        (2.345, "2.35s"),
        (14.53, "14.5s"),
        (59.96, "1m 00s"),
        (175.0, "2m 55s"),
        (3599.6, "1h00m"),
        (3720.0, "1h02m"),
        (604800.0, "168h00m"),
        (-2.0, "-2.00s"),
    ],
)
def test_durations(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


def test_times_are_utc_to_the_millisecond() -> None:
    assert clock(1795230125.2499) == "03:02:05.250"
    assert clock(1795230125.9999) == "03:02:06.000"
    assert stamp(1795230125.9) == "2026-11-21 03:02:05 UTC"
    assert short_stamp(1795230125.9) == "11-21 03:02:05"
    assert (clock(None), stamp(None), short_stamp(None)) == ("—", "—", "—")
    assert stamp(1e300) == "1970-01-01 00:00:00 UTC"
    assert ago(100.0, 97.0) == "0s ago"
    assert ago(None, 97.0) == "—"


def test_numbers() -> None:
    assert (count(48212), count(None), count(0)) == ("48,212", "—", "0")
    assert (percent(0.9614), percent(None), percent(0.0004, 2)) == ("96.1%", "—", "0.04%")
    assert (plural(1, "step"), plural(0, "step"), plural(1200, "step")) == ("1 step", "0 steps", "1,200 steps")


@pytest.mark.parametrize(
    ("ranks", "text"), [([], ""), ([3], "3"), ([0, 1], "0-1"), ([5, 0, 1, 2, 7, 8], "0-2,5,7-8"), ([1, 1, 3], "1,3")]
)
def test_ranks_are_folded(ranks: list[int], text: str) -> None:
    assert fold(ranks) == text


def test_bars_show_the_smallest_share_and_never_overflow() -> None:
    assert bar(0.0) == ""
    assert bar(1e-9) == "▏"
    assert bar(1.0) == "█" * BAR_WIDTH
    assert bar(0.5) == "█" * (BAR_WIDTH // 2)


def test_no_colour_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert style_for(Terminal()).colour
    assert not style_for(io.StringIO()).colour
    monkeypatch.setenv("NO_COLOR", "1")
    assert not style_for(Terminal()).colour
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert not style_for(Terminal()).colour
    assert Style(colour=True)("x", Paint.BOLD) == "\x1b[1mx\x1b[0m"
    assert PLAIN("x", Paint.BOLD) == "x"


def test_the_jobs_own_text_cannot_steer_the_terminal() -> None:
    assert printable("a\x1b[2Jb\r\nc\td") == "a\\x1b[2Jb\\x0d\nc\td"
    assert printable("größe ✓") == "größe ✓"


def test_tables_and_fields_line_up() -> None:
    assert table(("id", "what"), [("i1", "x"), ("i10", "")]) == ["id   what", "i1   x", "i10"]
    assert fields("why", ["one\ntwo", "three"], width=5) == ["  why  one", "       two", "       three"]


@pytest.mark.parametrize("code", sorted(CODES))
def test_every_code_has_a_page(code: str) -> None:
    page = render_code(CODES[code])
    assert page.startswith(f"{code} {CODES[code].name}")
    for part in (CODES[code].means, CODES[code].everstep_does, CODES[code].confirm, CODES[code].you_do):
        assert part.split("\n")[0] in page


def test_every_bucket_is_in_the_glossary() -> None:
    lines = render_glossary().splitlines()
    assert [line.split("  ")[0].replace(" ", "_") for line in lines] == [str(bucket) for bucket in Bucket]


def test_every_rule_of_the_brain_says_what_would_make_it_different() -> None:
    source = Path(recovery.__file__).read_text()
    planned = set(re.findall(r'_plan\("[^"]+", [^"]*(?:"[^"]*", )?"([a-z-]+)"', source))
    explained = set(
        re.findall(r'rule="([a-z-]+)"', Path(anomalies.__file__).read_text() + Path(hangs.__file__).read_text())
    )
    assert planned | explained | {late.RULE} == set(KNOBS)
