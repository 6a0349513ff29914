"""How often `everstep analyze` finds the fault of a public thread, its party and its class, and accuses an innocent.

    python bench/excerpts.py [--part read|kept] [--misses]

Judges tests/golden/knowledge/excerpts.txt. Found: a verdict with any cause. Harmful: with medium or high confidence, a
party or a rank that the thread did not settle on. `--misses` lists what differs, of the part `read` only: the part
`kept` is of use as long as its misses are unread.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import msgspec

from everstep.analyzer.hangs.diagnosis import Diagnosis
from everstep.analyzer.overall import overall
from everstep.evidence.folder import read_folder
from everstep.knowledge.loading import Base, load_base
from everstep.model.verdict import Blame, Confidence
from measuring.figures import table

TABLE = Path(__file__).parents[1] / "tests" / "golden" / "knowledge" / "excerpts.txt"
NOTHING_FOUND = ("ES-H00", "ES-H15")
NOW = 1_795_000_000.0


class Excerpt(msgspec.Struct, frozen=True, kw_only=True):
    part: str
    title: str
    classes: frozenset[str]
    parties: frozenset[str]
    ranks: str  # "*": any
    text: str


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """What the verdict on an excerpt gets right; `says` is the verdict in short."""

    is_found: bool
    is_party: bool
    is_class: bool
    is_harmful: bool
    says: str


def excerpts(path: Path = TABLE) -> list[Excerpt]:
    found = []
    for block in path.read_text(encoding="utf-8").split("\n=== ")[1:]:
        head, _, body = block.partition("\n")
        named, _, label = head.rpartition(" : ")
        part, _, title = named.partition(" ")
        classes, parties, ranks = label.split()
        lines = body.strip("\n").split("\n")
        text = "\n".join(lines[2:]) + "\n"  # the address and what was settled stand before it
        found.append(
            Excerpt(
                part=part,
                title=title,
                classes=frozenset(classes.split("|")),
                parties=frozenset(parties.split("|")),
                ranks=ranks,
                text=text,
            )
        )
    return found


def verdict_on(text: str) -> Diagnosis:
    """As `everstep analyze` reads a file with this text."""
    with tempfile.TemporaryDirectory(prefix="everstep-bench-") as folder:
        (Path(folder) / "paste.log").write_text(text, encoding="utf-8")
        read = read_folder(Path(folder), NOW)
        return overall(read.case, read.points, read.known)


def judge(excerpt: Excerpt, base: Base) -> Judged:
    verdict = verdict_on(excerpt.text).verdict
    signature = base.find(verdict.code)
    is_found = verdict.code not in NOTHING_FOUND
    is_party = str(verdict.blame) in excerpt.parties
    ranks = ",".join(map(str, verdict.ranks))
    is_sure = verdict.confidence is not Confidence.LOW
    accuses = not is_party and verdict.blame is not Blame.UNKNOWN
    names = bool(ranks) and excerpt.ranks not in ("*", ranks)
    return Judged(
        is_found=is_found,
        is_party=is_found and is_party,
        is_class=is_found and signature is not None and signature.klass in excerpt.classes,
        is_harmful=is_found and is_sure and (accuses or names),
        says=f"{verdict.code} {signature.klass if signature else ''} {verdict.blame} {verdict.confidence} {ranks}",
    )


def row(part: str, judged: list[Judged]) -> list[str]:
    number = len(judged)

    def share(right: int) -> str:
        return f"{right} ({right / max(1, number):.1%})"

    return [
        part,
        str(number),
        share(sum(one.is_found for one in judged)),
        share(sum(one.is_party for one in judged)),
        share(sum(one.is_class for one in judged)),
        str(sum(one.is_harmful for one in judged)),
    ]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=("read", "kept"), help="this part only")
    parser.add_argument("--misses", action="store_true", help="list what differs in the part `read`")
    args = parser.parse_args(argv)
    base = load_base()
    rows = []
    for part in (args.part,) if args.part else ("read", "kept"):
        chosen = [excerpt for excerpt in excerpts() if excerpt.part == part]
        judged = [judge(excerpt, base) for excerpt in chosen]
        rows.append(row(part, judged))
        if args.misses and part == "read":
            for excerpt, one in zip(chosen, judged, strict=True):
                if not (one.is_party and one.is_class) or one.is_harmful:
                    print(f"{excerpt.title}: {one.says}; harmful: {one.is_harmful}")
    print(table(["part", "excerpts", "found", "party", "class", "harmful"], rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
