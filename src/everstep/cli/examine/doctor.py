"""`everstep doctor`: what all ranks of a live run are doing now, in one report. The job is looked at, never stopped.
With `--hosts` it looks at hosts before a run (`cli.examine.hosts`).

Agents collect stacks, process states and flight records into the run directory; they are read and judged here, by the
same code as `everstep analyze`. The files stay, and `everstep analyze` reads them again.
"""

import argparse
import time
from typing import Any

import msgspec

from everstep.analyzer.observations.records import Case
from everstep.cli.ask import named, post
from everstep.cli.examine.analyze import encode, render, to_object
from everstep.cli.waiting import waiting
from everstep.errors import ConfigError, UnreachableError
from everstep.evidence.apart import read_apart
from everstep.journal.load import load_run
from everstep.journal.reader import Cursor
from everstep.journal.runs import RunDir, find_run
from everstep.journal.view import RunView
from everstep.model.actions import CollectEvidence, Refused
from everstep.model.events import EvidenceCollected, EvidenceRequested
from everstep.model.record import Record
from everstep.report.now.ranks import render_ranks
from everstep.report.parts import noted
from everstep.report.parts.ansi import one_line, printable, safe
from everstep.report.parts.layout import field, fields

_ARRIVAL_S = 2.0
_POLL_S = 0.05


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", nargs="?", metavar="RUN", help="id or directory; default: the latest run")
    parser.add_argument("--run", dest="named", metavar="RUN", help="the same")
    parser.add_argument(
        "--hosts",
        type=int,
        metavar="N",
        help="before a run: start this on each of N hosts with one --rdzv-endpoint; says what would keep them apart",
    )
    parser.add_argument("--rdzv-endpoint", default="", metavar="HOST:PORT", help="where they meet, with --hosts")
    parser.add_argument(
        "--timeout", type=float, metavar="S", help="how long to wait for the agents (15), or for the hosts (60)"
    )
    parser.add_argument("--json", action="store_true", help="one object, for programs")


def run(given: argparse.Namespace) -> int:
    """Raises UnreachableError when no agent answers, ConfigError when there is nothing to look at."""
    if given.hosts is not None:
        return _survey(given)
    run_dir = find_run(given.named or given.run)
    cursor = Cursor(run_dir.journal)
    cursor.read()  # what was before is not ours
    answer = post(run_dir, "/api/doctor", {})
    request, (turned_away, uneven) = named(answer, "request"), _said(answer)
    limit_s = 15.0 if given.timeout is None else given.timeout
    missing = await_evidence(run_dir, cursor, request, limit_s)
    view, asked_at = load_run(run_dir.journal), time.time()
    place = run_dir.path / "evidence" / request
    read = read_apart(place, time.time(), with_case=True)
    folder, diagnosis = read.folder, read.diagnosis
    if given.json:
        collected = {"folder": str(place), "missing_nodes": missing}
        found = {**to_object(diagnosis, folder), "per_rank": _per_rank(folder.case, view), "collected": collected}
        found["turned_away"], found["uneven"] = turned_away, uneven
        print(encode(found))
        return 0
    print(safe(render(diagnosis, folder)))
    more = [*_progress(view, asked_at), *uneven_lines(uneven)]
    print("\n".join(map(one_line, ["", *render_ranks(folder.case, diagnosis.clusters), *more, ""])))
    for node in missing:
        print(printable(f"node {node} did not answer within {limit_s:g} s"))
    if turned_away:
        print(printable(turned_away_text(turned_away)))
    print(printable(f"everstep analyze {place}   reads it again"))
    return 0


def _survey(given: argparse.Namespace) -> int:
    """1: something is wrong. Raises ConfigError, UnreachableError."""
    from everstep.cli.examine.hosts import survey

    limit_s = 60.0 if given.timeout is None else given.timeout
    return survey(given.hosts, given.rdzv_endpoint, limit_s, is_json=given.json)


class _Uneven(msgspec.Struct, frozen=True):
    code: str
    share: float
    verdict: str


def _said(answer: dict[str, Any]) -> tuple[dict[str, int], list[dict[str, Any]]]:
    """Return what the controller turned away, and what is uneven. Raises UnreachableError."""
    try:
        turned_away = msgspec.convert(answer.get("turned_away", {}), dict[str, int])
        msgspec.convert(answer.get("uneven", ()), list[_Uneven])
    except msgspec.ValidationError as error:
        raise UnreachableError(f"the answer cannot be used: {error}") from error
    return turned_away, list(answer.get("uneven", ()))


def uneven_lines(shares: list[dict[str, Any]]) -> list[str]:
    """A stage, a rank, or the work that takes longer than the others, over the last rounds; nothing while even."""
    return ["uneven", *(f"  {one['code']} ({one['share']:.0%})  {one['verdict']}" for one in shares)] if shares else []


def turned_away_text(counts: dict[str, int]) -> str:
    kinds = ", ".join(f"{kind} {number}" for kind, number in sorted(counts.items()))
    return f"turned away by the controller since it began: {kinds}   see docs/security.md"


def _progress(view: RunView, now: float) -> list[str]:
    """The last progress of each rank, and why one that makes none is left alone: as `everstep status` has them."""
    progress = noted.progress_text(view, now)
    return [*fields("ranks", noted.note_lines(view, now)), *(field("progress", progress) if progress else [])]


def _per_rank(case: Case, view: RunView) -> list[dict[str, Any]]:
    """Without stacks and records: the files have them."""
    last = noted.progress_of_ranks(view)
    fields = ("rank", "phase", "step", "step_age_s", "states", "load", "gpus", "links", "stack_source")
    listed = (*fields, "native", "unavailable", "unsupported")
    return [
        {
            **{name: getattr(each, name) for name in listed},
            "progress": last.get(each.rank, ("", None))[0] or None,
            "progress_at": last.get(each.rank, ("", None))[1],
        }
        for each in case.ranks
    ]


def await_evidence(run_dir: RunDir, cursor: Cursor, request: str, limit_s: float) -> list[str]:
    """Nodes that gave no answer in time."""
    deadline = time.monotonic() + limit_s
    asked: list[str] = []
    answers: list[EvidenceCollected] = []
    with waiting("evidence of", 0, "node") as bar:
        while not asked or len(answers) < len(asked):
            for record in cursor.read():
                if not isinstance(record, Record):
                    continue
                if isinstance(record.event, EvidenceRequested) and record.event.request == request:
                    asked = _asked(record)
                elif isinstance(record.event, EvidenceCollected) and record.event.incident == request:
                    answers.append(record.event)
            bar.at(len(answers), len(asked), f"waiting for nodes, at most {limit_s:g} s")
            if time.monotonic() > deadline:
                break
            time.sleep(_POLL_S)
    _until_there(run_dir, [each.file for answer in answers for each in answer.gathered if each.has])
    if not any(answer.gathered for answer in answers):
        raise UnreachableError(f"no agent gave evidence of a live rank within {limit_s:g} s")
    return [node for node in asked if node not in {answer.node for answer in answers}]


def _until_there(run_dir: RunDir, files: list[str]) -> None:
    """Those of other hosts come by another way than the report that names them."""
    ends_at = time.monotonic() + _ARRIVAL_S
    while time.monotonic() < ends_at and not all((run_dir.path / file).exists() for file in files):
        time.sleep(_POLL_S)


def _asked(record: Record) -> list[str]:
    """Raises ConfigError with the reason when there is no rank to look at."""
    for action in record.actions:
        if isinstance(action, Refused):
            raise ConfigError(action.why)
    return [action.node for action in record.actions if isinstance(action, CollectEvidence)]
