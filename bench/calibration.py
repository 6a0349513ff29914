"""How often a verdict of each confidence is right: the reliability table of docs/analyze.md.

The corpus: excerpts of logs (tests/golden/knowledge: facts of public reports in own words, and users' incidents), made
flight records of NCCL, made slow workers, and the real runs of bench/parties.py, of which the verdicts are recorded in
tests/golden/knowledge/live.tsv. All but the last are judged anew. A verdict that names nobody is neither right nor
wrong; of a healthy job, whoever is named is wrong.

    python bench/calibration.py [--write]                   --write: into docs/analyze.md
    python bench/calibration.py --add LOG --party PARTY     an incident of yours, its names masked, into the corpus
    python bench/calibration.py --record FILE ...           what bench/parties.py --json wrote, into the corpus
"""

import argparse
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import flight_records
import slow_workers
from everstep.analyzer.observations.records import Case
from everstep.analyzer.overall import overall
from everstep.evidence.known import KnownLines
from everstep.model.verdict import Blame, Confidence, Verdict
from everstep.report.handing.masking import Mask
from measuring.masking import masked

ROOT = Path(__file__).parents[1]
CORPUS = ROOT / "tests" / "golden" / "knowledge"
PAGE = ROOT / "docs" / "analyze.md"
BEGIN, END = "<!-- calibration: python bench/calibration.py --write -->", "<!-- /calibration -->"
NOW = 1_795_000_000.0
HIGH_SHARE = 0.98
_HEALTHY = "-"
Judged = tuple[str, Confidence, str]
"""Where from, how sure, and "right", "wrong" or "nobody"."""


def main() -> int:
    args = _arguments()
    if args.add is not None:
        return _add(args.add, args.party)
    if args.record:
        return _record(args.record)
    text = report(Counter(every()))
    print(text)
    if args.write:
        page = PAGE.read_text()
        head, _, rest = page.partition(BEGIN)
        PAGE.write_text(f"{head}{BEGIN}\n\n{text}\n\n{END}{rest.partition(END)[2]}")
    return 0


def every(num: int = 120) -> Iterator[Judged]:
    yield from excerpts()
    yield from flights(num)
    yield from slow(num // 3)
    yield from live()


def excerpts() -> Iterator[Judged]:
    for name, at in (("public.tsv", 1), ("reports.tsv", 2), ("incidents.tsv", 2)):
        for row in _rows(name, at + 2):
            parties = row[at].split("|") if row[at - 1] != _HEALTHY else [_HEALTHY]
            yield "logs", *_weighed(_of_log(row[at + 1].replace("\\n", "\n")), parties)
    for line in (CORPUS / "healthy.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            yield "logs", *_weighed(_of_log(line), [_HEALTHY])


def _rows(name: str, columns: int) -> Iterator[list[str]]:
    path = CORPUS / name
    for line in path.read_text().splitlines() if path.exists() else ():
        if not line.startswith("#"):
            yield line.split("\t", columns - 1)


def _of_log(text: str) -> Verdict:
    """As `everstep analyze` says of this log alone."""
    known = KnownLines(NOW)
    known.add("log", None, text.splitlines())
    return overall(Case(at=NOW, ranks=(), world=()), {}, known.found()).verdict


def _weighed(verdict: Verdict, parties: list[str]) -> tuple[Confidence, str]:
    if verdict.blame is Blame.UNKNOWN and not verdict.ranks:
        return verdict.confidence, "nobody"
    return verdict.confidence, "right" if str(verdict.blame) in parties else "wrong"


def flights(num: int) -> Iterator[Judged]:
    for _, made, without in flight_records.cases(num, 14_000):
        verdict = flight_records.judge(made, without)
        if not verdict.ranks:
            yield "flight records", verdict.confidence, "nobody"
        else:
            is_right = set(verdict.ranks) <= made.guilty
            yield "flight records", verdict.confidence, "right" if is_right else "wrong"


def slow(num: int) -> Iterator[Judged]:
    for kind in slow_workers.KINDS:
        for number in range(2 * num):
            factor = slow_workers.FACTORS[number % len(slow_workers.FACTORS)] if number < num else 1.0
            is_known = bool(number % 2)
            verdict, guilty = slow_workers.case(14_000 + number, kind, factor, is_known=is_known, is_early=False)
            named = set(verdict.ranks) if verdict.refusal is None else set()
            outcome = "nobody" if not named else "right" if named == guilty else "wrong"
            yield "slow workers", verdict.confidence, outcome


def live() -> Iterator[Judged]:
    for _, truth, _, blame, confidence, rank in _rows("live.tsv", 6):
        is_right = blame in truth.split("|") and rank == "right"
        outcome = "nobody" if blame in ("", "unknown") else "right" if is_right else "wrong"
        yield "real runs", Confidence(confidence or "low"), outcome


def report(counted: Counter[Judged]) -> str:
    lines = []
    sources = list(dict.fromkeys(source for source, _, _ in counted))
    for confidence in Confidence:
        for source in (*sources, "all"):
            of = {
                outcome: sum(
                    n for (s, c, o), n in counted.items() if (c, o) == (confidence, outcome) and source in (s, "all")
                )
                for outcome in ("right", "wrong", "nobody")
            }
            said = of["right"] + of["wrong"]
            if said:
                share = f"{of['right'] / said:.1%}"
                lines.append(f"| {confidence} | {source} | {said} | {of['right']} | {share} |")
    silent = sum(n for (_, _, outcome), n in counted.items() if outcome == "nobody")
    head = "| confidence | corpus | said | right | share |\n|---|---|---|---|---|"
    return "\n".join([head, *lines, "", f"{sum(counted.values())} cases; in {silent} nobody is named."])


def _add(path: Path, party: str) -> int:
    text = masked(Mask()(path.read_text(errors="replace"))).replace("\t", " ").replace("\\", "/").rstrip("\n")
    verdict = _of_log(text)
    with (CORPUS / "incidents.tsv").open("a") as file:
        file.write(f"read\t*\t{party}\t{text.replace(chr(10), chr(92) + 'n')}\n")
    print(text)
    print(f"added; everstep says: {verdict.code} {verdict.blame} ({verdict.confidence}). Read it: names may be left")
    return 0


def _record(files: list[Path]) -> int:
    from matrix.parties_faults import TRUTH
    from parties import read

    with (CORPUS / "live.tsv").open("a") as file:
        for one in (each for name in files for each in read(name) if each.happened):
            rank = "right" if one.right_rank else "wrong"
            fields = (one.hurt.kind, TRUTH[one.hurt.kind], one.code, one.blame, one.confidence, rank)
            file.write("\t".join(fields) + "\n")
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="the table into docs/analyze.md")
    parser.add_argument("--add", type=Path, metavar="LOG")
    parser.add_argument(
        "--party", choices=[str(blame) for blame in Blame], default="unknown", help="whose fault it was"
    )
    parser.add_argument("--record", type=Path, nargs="+", default=[], metavar="FILE")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
