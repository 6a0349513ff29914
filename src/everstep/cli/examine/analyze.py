"""`everstep analyze PATH|-`: what logs, py-spy dumps and flight records say about a hang or a fault, offline.

Given a table or a profiler's trace of timed operations, what it says about slowness.

Prints the verdict first. Never fails because of what it finds there: what cannot be used is listed with the reason.
"""

import argparse
import contextlib
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from everstep.analyzer.codes import CODES, name_of
from everstep.analyzer.hangs.diagnosis import Diagnosis
from everstep.analyzer.observations.known import Known
from everstep.analyzer.observations.words import fold, ranks_text
from everstep.evidence.apart import Weighed, read_or_weigh
from everstep.evidence.contents import Folder
from everstep.model.verdict import Confidence
from everstep.report.parts.actions import ACTIONS
from everstep.report.parts.ansi import one_line, safe, safe_json
from everstep.report.shares import render_shares, shares_object

_MAX_LISTED = 20
_MAX_INPUT_BYTES = 1 << 30


def add_arguments(parser: argparse.ArgumentParser) -> None:
    what = "directory with logs, py-spy dumps and flight records; a log, table or profiler trace; - for standard input"
    parser.add_argument("path", metavar="PATH", type=Path, help=what)
    parser.add_argument("--stages", type=int, default=0, help="pipeline stages, where a trace does not say them")
    parser.add_argument("--json", action="store_true", help="one object, for programs")


def run(given: argparse.Namespace) -> int:
    """Raises ConfigError when PATH can be read neither as a directory, nor as a log, nor as a trace."""
    if str(given.path) == "-":
        with _pasted() as directory:
            found = read_or_weigh(directory, time.time(), given.stages)
    else:
        found = read_or_weigh(given.path, time.time(), given.stages)
    if isinstance(found, Weighed):
        shares, table = found.shares, found.table
        print(encode(shares_object(shares, table)) if given.json else render_shares(shares, table))
        return 0
    folder, diagnosis = found.folder, found.diagnosis
    if given.json:
        print(encode(to_object(diagnosis, folder)))
    else:
        print(safe(render(diagnosis, folder)))
    return 0


@contextlib.contextmanager
def _pasted() -> Iterator[Path]:
    """Standard input as the only log of a directory."""
    with tempfile.TemporaryDirectory(prefix="everstep-analyze-") as directory:
        left = _MAX_INPUT_BYTES
        with (Path(directory) / "stdin.log").open("wb") as file:
            while left > 0 and (piece := sys.stdin.buffer.read(min(1 << 20, left))):
                file.write(piece)
                left -= len(piece)
        yield Path(directory)


def _known(code: str, folder: Folder) -> Known | None:
    return next((known for known in folder.known if known.code == code), None)


def _name(code: str, folder: Folder) -> str:
    known = _known(code, folder)
    return CODES[code].name if code in CODES else known.name if known is not None else ""


def to_object(diagnosis: Diagnosis, folder: Folder) -> dict[str, Any]:
    """The documented object (docs/analyze.md); it only ever grows."""
    verdict, group = diagnosis.verdict, diagnosis.group
    return {
        "verdict": verdict.sentence,
        "code": verdict.code,
        "name": _name(verdict.code, folder),
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
        "known": [
            {
                "code": k.code,
                "title": k.title,
                "blame": str(k.blame),
                "source": k.source,
                "line": k.line,
                "text": k.text,
            }
            for k in folder.known
        ],
        "read": list(folder.read),
        "collect": list(folder.collect),
        "notes": list(folder.notes),
        "unreadable": [{"file": u.file, "why": u.why, "rank": u.rank} for u in folder.unreadable],
    }


def encode(found: dict[str, Any]) -> str:
    """One line of JSON, whatever characters files and their names hold."""
    try:
        return safe_json(msgspec.json.encode(found).decode())
    except UnicodeEncodeError:  # half a surrogate pair: a name that is not UTF-8, or a hostile dump
        return safe_json(msgspec.json.encode(_encodable(msgspec.to_builtins(found, str_keys=True))).decode())


def _encodable(value: Any) -> Any:  # noqa: ANN401 - plain data of any shape
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {_encodable(key): _encodable(item) for key, item in value.items()}
    return [_encodable(item) for item in value] if isinstance(value, list | tuple) else value


def render(diagnosis: Diagnosis, folder: Folder) -> str:
    """The diagnosis for people: verdict, what to isolate, evidence by source, what was not used, what to do."""
    verdict, group = diagnosis.verdict, diagnosis.group
    title = f"{verdict.code} {_name(verdict.code, folder)}".strip()
    lines = [f"{title} ({verdict.confidence} confidence): {verdict.sentence}"]
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
    lines += _lines_known(diagnosis, folder)
    lines += _left_out(folder)
    do, confirm = _advice(verdict.code, folder)
    lines += ["do", f"  {do}", f"  to confirm: {confirm}"]
    if folder.collect and verdict.confidence is not Confidence.HIGH:
        lines += ["collect next", *(f"  {what}" for what in folder.collect)]
    lines.append(f"read {folder.num_files} files of {_ranks_seen(folder)}")
    if folder.read:
        lines.append(f"found {', '.join(folder.read)}")
    return "\n".join(map(one_line, lines))


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


def _lines_known(diagnosis: Diagnosis, folder: Folder) -> list[str]:
    """List the lines that the signatures know in the logs, except those with the verdict's own code."""
    listed = [known for known in folder.known if known.code != diagnosis.verdict.code]
    if not listed:
        return []
    return ["in the logs", *(f"  {k.source}:{k.line}: {k.code} {k.title} (blame {k.blame})" for k in listed)]


def _advice(code: str, folder: Folder) -> tuple[str, str]:
    """Return what to do, and how to confirm it."""
    known = _known(code, folder)
    if code in CODES or known is None:
        return CODES[code].you_do, CODES[code].confirm
    return known.do or ACTIONS.get(known.action, known.action), known.confirm


def _left_out(folder: Folder) -> list[str]:
    listed = [*folder.notes, *(f"{u.file}: {u.why}" for u in folder.unreadable)]
    if not listed:
        return []
    more = [f"  ... and {len(listed) - _MAX_LISTED} more (--json has all)"] if len(listed) > _MAX_LISTED else []
    return ["not used", *(f"  {text}" for text in listed[:_MAX_LISTED]), *more]


def _ranks_seen(folder: Folder) -> str:
    return ranks_text(folder.case.world) if folder.case.world else "no rank"
