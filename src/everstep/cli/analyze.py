"""`everstep analyze PATH`: what a directory of logs, py-spy dumps and flight records says about a hang, offline.

Given a table or a profiler's trace of timed operations, what it says about slowness.

Prints the verdict first. Never fails because of what it finds there: what cannot be used is listed with the reason.
"""

import argparse
import time
from pathlib import Path
from typing import Any

import msgspec

from everstep.analyzer.codes import CODES, name_of
from everstep.analyzer.hangs.combine import Diagnosis
from everstep.analyzer.observations.words import fold, ranks_text
from everstep.analyzer.reading.pickled import UnreadableError
from everstep.analyzer.slowness.shares import weigh
from everstep.errors import ConfigError
from everstep.evidence.apart import read_apart
from everstep.evidence.folder import Folder
from everstep.evidence.tables import is_table, read_tables, traces_in
from everstep.report.parts.ansi import printable
from everstep.report.shares import render_shares, shares_object

_MAX_LISTED = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "dir",
        metavar="PATH",
        type=Path,
        help="directory with logs, py-spy dumps and flight records; or a table or profiler trace of operations",
    )
    parser.add_argument("--stages", type=int, default=0, help="pipeline stages, where a trace does not say them")
    parser.add_argument("--json", action="store_true", help="one object, for programs")


def run(given: argparse.Namespace) -> int:
    """Raises ConfigError when PATH can be read neither as a directory nor as a trace."""
    traces = _traces(given.dir)
    if traces:
        return _run_traces(traces, given)
    found = read_apart(given.dir, time.time(), with_numbers=True)
    folder, diagnosis = found.folder, found.diagnosis
    if given.json:
        print(encode(to_object(diagnosis, folder)))
    else:
        print(render(diagnosis, folder))
    return 0


def _traces(path: Path) -> list[Path]:
    try:
        if path.is_file():
            return [path] if is_table(path) else []
        return traces_in(path)
    except (OSError, UnreadableError):
        return []  # the reader of folders says what is wrong


def _run_traces(traces: list[Path], given: argparse.Namespace) -> int:
    try:
        table = read_tables(traces, given.stages)
    except UnreadableError as error:
        raise ConfigError(f"{given.dir}: cannot be read as a trace of operations: {error}") from error
    shares = weigh(table)
    print(encode(shares_object(shares, table)) if given.json else printable(render_shares(shares, table)))
    return 0


def to_object(diagnosis: Diagnosis, folder: Folder) -> dict[str, Any]:
    """The documented object (docs/analyze.md); it only ever grows."""
    verdict, group = diagnosis.verdict, diagnosis.group
    return {
        "verdict": verdict.sentence,
        "code": verdict.code,
        "name": CODES[verdict.code].name,
        "ranks": list(verdict.ranks),
        "group": {"name": group.name, "desc": group.desc, "kind": group.kind, "ranks": list(group.ranks)}
        if group
        else None,
        "confidence": str(verdict.confidence),
        "blame": str(verdict.blame),
        "place": verdict.place,
        "generation": folder.generation,
        "evidence": [
            {"source": e.source, "says": e.says, "rank": e.rank, "detail": e.detail} for e in verdict.evidence
        ],
        "others": [
            {"code": f.code, "verdict": f.sentence, "ranks": list(f.ranks), "confidence": str(f.confidence)}
            for f in diagnosis.findings[1:]
        ],
        "notes": list(folder.notes),
        "unreadable": [{"file": u.file, "why": u.why, "rank": u.rank} for u in folder.unreadable],
    }


def encode(found: dict[str, Any]) -> str:
    """One line of JSON, whatever characters files and their names hold."""
    try:
        return msgspec.json.encode(found).decode()
    except UnicodeEncodeError:  # half a surrogate pair: a name that is not UTF-8, or a hostile dump
        return msgspec.json.encode(_encodable(msgspec.to_builtins(found, str_keys=True))).decode()


def _encodable(value: Any) -> Any:  # noqa: ANN401 - plain data of any shape
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {_encodable(key): _encodable(item) for key, item in value.items()}
    return [_encodable(item) for item in value] if isinstance(value, list | tuple) else value


def render(diagnosis: Diagnosis, folder: Folder) -> str:
    """For people: verdict, whom to isolate, evidence by source, what was not used, what to do."""
    verdict, group = diagnosis.verdict, diagnosis.group
    lines = [f"{name_of(verdict.code)} ({verdict.confidence} confidence): {verdict.sentence}"]
    if verdict.ranks:
        lines.append(f"  suspects  {', '.join(map(str, verdict.ranks[:_MAX_LISTED]))} (most suspect first)")
    if group:
        kind = f", {group.kind}" if group.kind else ""
        lines.append(f"  group     {group.title} (ranks {fold(group.ranks)}{kind})")
    if verdict.place:
        lines.append(f"  place     {verdict.place}")
    lines += _evidence(diagnosis)
    if len(diagnosis.findings) > 1:
        lines.append("also")
        lines += [f"  {name_of(f.code)}: {f.sentence}" for f in diagnosis.findings[1:_MAX_LISTED]]
    lines += _left_out(folder)
    code = CODES[verdict.code]
    lines += ["do", f"  {code.you_do}", f"  to confirm: {code.confirm}"]
    lines.append(f"read {folder.num_files} files of {_ranks_seen(folder)}")
    return printable("\n".join(lines))


def _evidence(diagnosis: Diagnosis) -> list[str]:
    by_source: dict[str, list[str]] = {}
    for evidence in diagnosis.verdict.evidence:
        who = f"rank {evidence.rank}: " if evidence.rank is not None else ""
        by_source.setdefault(evidence.source, []).append(f"{who}{evidence.says}")
    lines = ["evidence"] if by_source else []
    for source, says in by_source.items():
        lines += [f"  {source:<14}{text}" for text in says[:_MAX_LISTED]]
        if len(says) > _MAX_LISTED:
            lines.append(f"  {source:<14}... and {len(says) - _MAX_LISTED} more (--json has all)")
    return lines


def _left_out(folder: Folder) -> list[str]:
    listed = [*folder.notes, *(f"{u.file}: {u.why}" for u in folder.unreadable)]
    if not listed:
        return []
    more = [f"  ... and {len(listed) - _MAX_LISTED} more (--json has all)"] if len(listed) > _MAX_LISTED else []
    return ["not used", *(f"  {text}" for text in listed[:_MAX_LISTED]), *more]


def _ranks_seen(folder: Folder) -> str:
    return ranks_text(folder.case.world) if folder.case.world else "no rank"
