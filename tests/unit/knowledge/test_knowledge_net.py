"""The net of words in front of the automaton: it loses no line that the automaton would find."""

import random
import re
from pathlib import Path

import pytest
import re2
from built_in import BASE

from everstep.knowledge.engine import SIEVE_AFTER_BYTES, Engine
from everstep.knowledge.findings import Finding
from everstep.knowledge.loading import load_base
from everstep.knowledge.matcher import Matcher
from everstep.knowledge.screening import net as net_module
from everstep.knowledge.screening.look import Look, Sieve
from everstep.knowledge.screening.net import Net, everyday
from everstep.knowledge.screening.required import Rarity, Word, required
from everstep.knowledge.screening.screen import Screen, options, without_anchors

GOLDEN = Path(__file__).parents[2] / "golden" / "knowledge"
LINES = sorted(
    {
        line
        for name in ("lines.tsv", "public.tsv", "reports.tsv", "healthy.txt")
        for row in (GOLDEN / name).read_text(encoding="utf-8").splitlines()
        for line in row.split("\t")[-1].replace("\\n", "\n").split("\n")
    }
)
PATTERNS = [without_anchors(p)[0] for s in BASE.signatures for p in s.patterns]
NO_TEXTS = Rarity()


def swift() -> Engine:
    engine = Engine(BASE.signatures)
    engine.prepare()
    return engine


SWIFT, PLAIN = swift(), Engine(BASE.signatures)


def read(engine: Engine, text: bytes, *, prepares: bool = True) -> list[Finding]:
    matcher = Matcher(BASE, now=1_795_000_000.0, engine=engine)
    matcher.may_prepare = prepares
    matcher.feed("log", text)
    return matcher.finish()


def holds(text: str, word: Word) -> bool:
    return word.text in (text.lower() if word.folds else text)


def test_hyperscan_is_there_and_every_signature_goes_through_the_net():
    net = Net(PATTERNS)
    assert net.is_usable
    assert net.rest == []


@pytest.mark.slow
def test_a_line_that_a_pattern_matches_holds_one_of_its_words():
    rarity = Rarity(everyday())
    num_seen = 0
    for pattern in PATTERNS:
        compiled = re2.compile(pattern.encode(), options())
        words = required(pattern, rarity)
        if not words:
            continue
        for line in (line for line in LINES[::3] if compiled.search(line.encode())):
            num_seen += 1
            assert any(holds(line, word) for word in words), (pattern, line)
    assert num_seen > 700


def broken(rng: random.Random, line: str) -> str:
    """A near miss: the line with something changed, cut, doubled or put into another case."""
    at = rng.randrange(len(line) + 1)
    other = rng.choice(LINES)
    return rng.choice(
        (
            line[:at] + rng.choice("xE0 :\t\x0b\r\x00é") + line[at + 1 :],
            line[at:],
            line[:at] + other,
            line.upper(),
            line.lower(),
            line.swapcase(),
            line[:at] + line[max(0, at - 8) :],
        )
    )


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_findings_are_the_same_with_the_net_and_without(seed: int):
    rng = random.Random(seed)
    lines = [rng.choice(LINES) for _ in range(300)]
    text = "\n".join(broken(rng, line) if line and rng.random() < 0.6 else line for line in lines).encode()
    assert read(SWIFT, text) == read(PLAIN, text, prepares=False)


@pytest.mark.slow
def test_all_known_lines_are_found_through_the_net():
    text = "\n".join(LINES[::3]).encode()
    found = read(SWIFT, text)
    assert found == read(PLAIN, text, prepares=False)
    assert len(found) > 200


def test_what_is_rich_in_words_or_very_long_is_read_as_before():
    for text in (b"error failed NCCL WARN timeout " * 9000, b"x" * 200_000 + b" CUDA out of memory " + b"y" * 200_000):
        assert read(SWIFT, text) == read(PLAIN, text, prepares=False)


SITE = """
[[signature]]
code = "MY-A01"
class = "rack_door"
component = "host"
role = "root"
blame = "machine"
severity = "error"
action = "CHECK_NODE"
title = "Door"
meaning = "Door."
confirm = "Look."
patterns = [
  '[a-z]+\\d{3}-\\d{4,} x*', '\\bd(?:oo|o)r\\S{0,3} (?i:open)\\b', '[[:upper:]]{3}-\\pN{2,4}-end',
  '(?i)RACK\\s+(?:a|b)?[0-9]{2} (?:hot|cold)$',
]
"""


def test_signatures_of_a_site_are_found_whatever_they_are_made_of(tmp_path: Path):
    (tmp_path / "site.toml").write_text(SITE)
    base = load_base([tmp_path])
    assert base.problems == ()
    patterns = [without_anchors(p)[0] for s in base.signatures for p in s.patterns]
    sieve = Sieve(patterns)
    assert sieve.net.rest == [r"[[:upper:]]{3}-\pN{2,4}-end"]
    screen = Screen(pattern.encode() for pattern in patterns)
    lines = [
        b"all is well 12",
        b"abc123-45678 ",
        b"door1 OPEN",
        b"dr open",
        b"dor OpEn now",
        b"ABC-12-end",
        b"abC-12-end",
    ]
    lines += [b"rack  12 hot", b"Rack\x0b12 hot", b"rAck b12 cold", b"rack 12 hot.", b"step 12 loss 1.0"] * 3
    data = b"\n".join(lines)
    found = [data[begin:end] for begin, end in all_lines(Look(data, screen, sieve))]
    assert found == [data[begin:end] for begin, end in all_lines(Look(data, screen, None))]
    assert set(found) == set(lines[1:3]) | {lines[4], lines[5], lines[7], lines[9]}


def all_lines(look: Look) -> list[tuple[int, int]]:
    found, position = [], 0
    while (line := look.next_line(position)) is not None:
        found.append(line)
        position = line[1] + 1
    return found


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("abc.*defgh", {"defgh"}),  # the longer one
        ("ab(?:c|d)e", {"abce", "abde"}),
        ("abc?d", {"abd", "abcd"}),
        ("ab{2}c", {"abbc"}),
        ("ab{0,2}cde", {"cde"}),
        ("x*", set()),
        ("[xyz]+foo", {"foo"}),
        ("foo|", set()),
        ("(?i:FOO)bar", {"foobar~"}),
        ("(?i)foo(?:BAR)", {"foobar~"}),
        (r"a\.b\(c", {"a.b(c"}),
        (r"\bfoo\b$", {"foo"}),
        (r"error \d+", {"error "}),
        (r"E\d{3}:", {f"E{a}{b}" for a in range(10) for b in range(10)}),
        ("foo(?P<x>bar)", None),
        (r"foo\pN", None),
        ("foo[[:digit:]]bar", None),
        (r"foo\Qbar\E", None),
        ("foé", None),
        ("(?s)foo.bar", None),
    ],
)
def test_words_that_a_pattern_needs(pattern: str, words: set[str] | None):
    found = required(pattern, NO_TEXTS)
    assert (None if found is None else {w.text + "~" * w.folds for w in found}) == words


def test_words_are_never_wrong_for_what_pythons_engine_matches():
    """Random patterns against texts made to match nearly."""
    rng = random.Random(7)

    def pattern(depth: int) -> str:
        parts = []
        for _ in range(rng.randrange(1, 4)):
            atom = rng.choice(["a", "b", "ab", "A", r"\d", ".", "[ab]", "[^a]", r"\.", "1", r"\b"])
            if depth and rng.random() < 0.4:
                bars = "|".join(pattern(depth - 1) for _ in range(rng.randrange(1, 3)))
                atom = f"({rng.choice(['?:', '?i:', ''])}{bars})"
            repeats = rng.choice(["", "", "", "?", "*", "+", "{2}", "{0,1}", "{1,}", "??", "+?"])
            parts.append(atom + ("" if atom.endswith(r"\b") or (len(atom) == 2 and atom == "ab") else repeats))
        return "".join(parts)

    num_matched = 0
    for _ in range(800):
        made = pattern(2)
        words = required(made, NO_TEXTS)
        compiled = re.compile(made)
        for _ in range(12):
            text = "".join(rng.choice("abAB1.2 ") for _ in range(rng.randrange(9)))
            if compiled.search(text):
                num_matched += 1
                assert not words or any(holds(text, word) for word in words), (made, text, words)
    assert num_matched > 800


def test_without_hyperscan_everything_is_read_by_the_automaton(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(net_module, "library", lambda: None)
    engine = swift()
    text = "\n".join(LINES[::20]).encode()
    assert read(engine, text) == read(PLAIN, text, prepares=False)


def test_nobody_waits_for_the_net_who_may_not():
    engine = Engine(BASE.signatures)
    engine.look(b"x" * (SIEVE_AFTER_BYTES + 1), may_prepare=False)
    assert engine._sieve is None
    engine.look(b"x")
    assert engine._sieve is not None


def test_what_is_looked_for_from_behind_is_wherever_its_pattern_is():
    rng = random.Random(8)
    parts = (
        "grad_norm",
        "Gradient Norm",
        "gradnorm",
        "of",
        "f",
        "nan",
        "inf",
        ": ",
        "=",
        " ",
        "x",
        "'",
        "1",
        "nano",
        ":",
    )
    for pattern, behind in net_module._FROM_BEHIND.items():
        assert pattern in PATTERNS
        whole, end = re2.compile(pattern), re.compile(behind)
        texts = ["".join(rng.choices(parts, k=7)) for _ in range(60_000)]
        matched = [text for text in texts if whole.search(text)]
        assert len(matched) > 50
        assert all(end.search(text) for text in matched)
        assert end.search("number of nan iterations:   0") is None


FEW = (r"Error bars.*are broken", r"CUDA error: an illegal memory access")


def test_a_warning_that_is_printed_again_and_again_is_shown_to_an_automaton_once(monkeypatch):
    net, shown = Net(FEW), []
    real = Screen.matters

    def matters(self, text):
        shown.append(text)
        return real(self, text)

    monkeypatch.setattr(Screen, "matters", matters)
    harmless = b"UserWarning: Error bars are not affected %s.\n" % (b"by this" * 30) * 50
    assert net.lines(harmless) == ([], [])
    first = len(shown)
    assert first > 0
    assert net.lines(harmless) == ([], [])
    assert len(shown) == first
    fault = b"RuntimeError: CUDA error: an illegal memory access was encountered\n"
    for _ in range(2):  # a fault is not remembered as harmless, nor is what stands beside it
        lines, _ = net.lines(harmless + fault)
        assert [(harmless + fault)[begin:end] for begin, end in lines] == [fault[:-1]]


def test_of_the_lines_that_were_harmless_not_too_many_are_kept():
    net = Net(FEW)
    for number in range(net_module._MAX_KNOWN // 40):
        net.lines(b"".join(b"UserWarning: Error bars of %0200d\n" % (100 * number + n) for n in range(100)))
        assert sum(map(len, net._harmless.values())) <= net_module._MAX_KNOWN
    assert net._harmless
    long = b"UserWarning: Error bars " + b"x" * net_module._MAX_KNOWN_BYTES
    assert net.lines(long + b"\n") == ([], [])
    assert all(long not in known for known in net._harmless.values())


def test_a_line_that_is_printed_many_times_is_remembered_as_one():
    net = Net(FEW)
    lines = [b"UserWarning: Error bars of %0200d" % number for number in range(10)]
    for line in lines:
        assert net.lines(500 * (line + b"\n")) == ([], [])
    assert set[bytes]().union(*net._harmless.values()) == set(lines)
