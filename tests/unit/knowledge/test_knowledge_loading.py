"""Signature files: ours are sound, a site's are refused precisely and one by one."""

from pathlib import Path

import pytest

from everstep.knowledge.engine import refusal
from everstep.knowledge.loading import BUILT_IN, Base, load_base
from everstep.knowledge.matcher import Matcher
from everstep.knowledge.screening.screen import without_anchors
from everstep.knowledge.signature import Action, Role

NOW = 1_795_000_000.0
GOOD = """
[[signature]]
code = "SITE-001"
class = "site_tape_robot"
component = "storage"
title = "The tape robot dropped a tape"
patterns = ['tape robot: dropped']
role = "root"
blame = "storage"
severity = "error"
action = "CHECK_STORAGE"
meaning = "It happens."
confirm = "Look at the floor."
"""


@pytest.fixture(scope="module")
def base() -> Base:
    return load_base(check_built_in=True)


def site(tmp_path: Path, text: str) -> Base:
    (tmp_path / "site.toml").write_text(text)
    return load_base([tmp_path])


def test_ours_are_all_usable(base):
    assert [str(p) for p in base.problems] == []
    assert len(base.signatures) > 400
    assert {path.stem for path in BUILT_IN.glob("*.toml")} >= {"gpu", "nccl", "ascend", "amd", "unknown", "scheduler"}


def test_codes_are_unique_and_references_point_to_codes(base):
    codes = [s.code for s in base.signatures]
    assert len(codes) == len(set(codes))
    for signature in base.signatures:
        for other in (*signature.after, *signature.recovers):
            assert other in codes, (signature.code, other)


def test_what_is_only_a_consequence_or_unknown_is_never_acted_upon(base):
    for signature in base.signatures:
        if signature.role in (Role.CASCADE, Role.UNKNOWN, Role.RECOVERY):
            assert not signature.action.acts, signature.code


@pytest.mark.parametrize("code", ["ES-G43", "ES-G45", "ES-TD01", "ES-NC08", "ES-GL02", "ES-PY19"])
def test_these_are_never_causes(base, code):
    assert base.find(code).role is Role.CASCADE


def test_a_site_adds_a_signature(tmp_path):
    base = site(tmp_path, GOOD)
    assert base.problems == ()
    matcher = Matcher(base, now=NOW)
    matcher.feed("-", b"2026-11-21 03:14:05 tape robot: dropped A00123\n")
    (finding,) = matcher.finish()
    assert (finding.code, finding.klass, finding.action) == ("SITE-001", "site_tape_robot", Action.CHECK_STORAGE)


@pytest.mark.parametrize(
    ("old", "new", "line", "key", "part"),
    [
        ('"root"', '"boss"', 8, "role", "'boss' is not one of root, either, cascade, recovery, unknown"),
        ('"storage"\nsev', '"weather"\nsev', 9, "blame", "'weather' is not one of user, machine"),
        ("dropped']", "(dropped']", 7, "patterns", "missing )"),
        ("dropped']", "dropped(?=x)']", 7, "patterns", "not a pattern of RE2"),
        ("'tape robot: dropped'", "'.*'", 7, "patterns", "matches lines that say nothing"),
        ("'tape robot: dropped'", "'${tape}'", 7, "patterns", "${tape} is not in [fragments]"),
        ("['tape robot: dropped']", "'tape'", 7, "patterns", "expected a list of texts"),
        ("SITE-001", "site 1", 3, "code", "is not like ES-G79"),
        ("SITE-001", "ES-G79", 3, "code", "already used in gpu.toml:"),
        ('meaning = "It happens."', "", 2, "meaning", "missing"),
        ("confirm =", "konfirm =", 13, "konfirm", "unknown key; there are: action"),
        ('"error"', '"info"', 11, "action", "nothing is done about those"),
        ('"error"', '"error"\nspecificity = 101', 11, "specificity", "not a number from 0 to 100"),
    ],
)
def test_a_broken_one_is_refused_with_line_and_reason(tmp_path, old, new, line, key, part):
    assert old in GOOD
    other = GOOD.replace("SITE-001", "SITE-002")
    base = site(tmp_path, GOOD.replace(old, new) + other)
    (problem,) = base.problems
    assert (problem.line, problem.key) == (line, key), str(problem)
    assert part in problem.why
    assert base.find("SITE-002") is not None  # the rest works
    assert base.find("SITE-001") is None
    assert base.find("ES-G79").klass == "gpu_fallen_off_bus"


def test_a_file_that_is_not_toml_is_refused_with_its_line(tmp_path):
    base = site(tmp_path, GOOD + "\n[[signature]\n")
    (problem,) = base.problems
    assert problem.line == 15
    assert "not TOML" in str(problem)
    assert len(base.signatures) == len(load_base().signatures)


def test_binary_and_unreadable_files_are_refused(tmp_path):
    (tmp_path / "a.toml").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "b.toml").mkdir()
    base = load_base([tmp_path, tmp_path / "none"])
    assert [p.line for p in base.problems] == [0, 0, 0]
    assert len(base.signatures) == len(load_base().signatures)


def test_override_replaces_one_of_ours(tmp_path):
    text = GOOD.replace("SITE-001", "ES-G64").replace("'tape robot: dropped'", "'Xid.*: 64\\b'")
    base = site(tmp_path, text.replace("[[signature]]", "[[signature]]\noverride = true"))
    assert base.problems == ()
    assert base.find("ES-G64").title == "The tape robot dropped a tape"
    assert len(base.signatures) == len(load_base().signatures)


def test_a_family_makes_one_signature_a_row_and_names_the_row_that_is_wrong(tmp_path):
    family = GOOD.replace("[[signature]]", "[[family]]").replace("SITE-001", "SITE-{n}").replace("dropped", "code {n}")
    rows = 'rows = [\n  { n = "101" },\n  { n = "10 2" },\n  { n = "103" },\n]\n'
    base = site(tmp_path, family + rows)
    assert [s.patterns for s in base.signatures if s.code.startswith("SITE")] == [
        ("tape robot: code 101",),
        ("tape robot: code 103",),
    ]
    (problem,) = base.problems
    assert (problem.line, problem.key) == (16, "code")


@pytest.mark.parametrize(
    ("pattern", "bare", "anchored"),
    [("^a[^]b]c", "a[^]b]c", True), (r"a\^b", r"a\^b", False), ("x|^y", "x|y", True), ("[]^]", "[]^]", False)],
)
def test_anchors_are_found_outside_of_classes(pattern, bare, anchored):
    assert without_anchors(pattern) == (bare, anchored)


def test_refusal_says_why():
    assert refusal("a+b") == ""
    assert "not a pattern" in refusal("(a")
    assert "say nothing" in refusal("a*")
