"""Pasted logs and the verdict that their fault deserves: the table has minimal inputs and further ones of each kind."""

from pathlib import Path

import pytest

from everstep.analyzer.hangs.diagnosis import Diagnosis
from everstep.analyzer.overall import overall
from everstep.evidence.folder import read_folder

NOTHING_FOUND = ("ES-H00", "ES-H15")
TABLE = Path(__file__).parents[2] / "golden" / "knowledge" / "verdicts.txt"


def cases() -> dict[str, tuple[str, str]]:
    """Text and expectation by title."""
    text = TABLE.read_text(encoding="utf-8")
    blocks = [block.partition("\n") for block in text.split("\n=== ")[1:]]
    heads = [(head.rsplit(" : ", 1), body) for head, _, body in blocks]
    return {title: (body, expected) for (title, expected), body in heads}


CASES = cases()


def judged(tmp_path: Path, text: str) -> Diagnosis:
    (tmp_path / "paste.log").write_text(text + "\n")
    folder = read_folder(tmp_path, 1.795e9)
    return overall(folder.case, folder.points, folder.known)


@pytest.mark.parametrize("title", CASES)
def test_a_paste_gets_the_verdict_that_its_fault_deserves(tmp_path, title):
    text, expected = CASES[title]
    codes, parties, confidences, ranks = expected.split()
    verdict = judged(tmp_path, text).verdict
    said = f"{verdict.code} {verdict.blame} {verdict.confidence} {verdict.ranks}: {verdict.sentence}"
    assert verdict.code in codes.split("|") or (codes == "*" and verdict.code not in NOTHING_FOUND), said
    assert str(verdict.blame) in parties.split("|"), said
    assert confidences == "*" or str(verdict.confidence) in confidences.split("|"), said
    assert ranks == "*" or ",".join(map(str, verdict.ranks)) == ranks.strip("-"), said


def test_no_title_stands_for_two_cases():
    assert len(CASES) == TABLE.read_text(encoding="utf-8").count("\n=== ")
