"""`everstep kb`: what is known about faults, and what of it stands in a log.

everstep kb match [FILE...|-]   findings, cause first          everstep kb ls [WORD]     all signatures
everstep kb show CODE           one signature                  everstep kb unknown       lines that no signature matches
"""

import argparse
import json
import os
import sys
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from everstep.errors import ConfigError
from everstep.journal import runs
from everstep.knowledge.causality.ranking import SKEW_S, choose_verdict, rank_findings
from everstep.knowledge.findings import Finding
from everstep.knowledge.loading import Base, load_base
from everstep.knowledge.matcher import Matcher
from everstep.knowledge.pages import entry
from everstep.knowledge.review import ReviewQueue, Unknown, fold_unknown
from everstep.knowledge.signature import PASSIVE
from everstep.report.parts.ansi import one_line, safe

_CHUNK_BYTES = 1 << 20
_GZIP = b"\x1f\x8b"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="what", required=True, metavar="WHAT")
    match = verbs.add_parser("match", help="find known faults in logs, cause first")
    match.add_argument("files", nargs="*", metavar="FILE", help="logs, also gzipped; - or nothing: standard input")
    match.add_argument("--skew", type=float, default=SKEW_S, metavar="S", help="how much clocks may disagree")
    match.add_argument("--remember", action="store_true", help="put unknown lines into the review queue")
    match.add_argument("--all", action="store_true", help="show also what is harmless or only for information")
    ls = verbs.add_parser("ls", help="list signatures")
    ls.add_argument("word", nargs="?", default="", metavar="WORD", help="part of a code, class, component or title")
    show = verbs.add_parser("show", help="everything about one signature")
    show.add_argument("code", metavar="CODE")
    unknown = verbs.add_parser("unknown", help="lines that only a family caught, for review")
    unknown.add_argument("files", nargs="*", metavar="FILE", help="logs to look at instead of the queue")
    unknown.add_argument("--drop", metavar="ID", help="take one out of the queue")
    for verb in (match, ls, show, unknown):
        verb.add_argument("--json", action="store_true", help="for programs")
        verb.add_argument("--kb-dir", action="append", default=[], metavar="DIR", help="signatures of your site (TOML)")


def run(given: argparse.Namespace) -> int:
    base = _base(given.kb_dir)
    if given.what == "match":
        return _match(given, base)
    if given.what == "ls":
        return _ls(given, base)
    if given.what == "show":
        return _show(given, base)
    return _unknown(given, base)


def _base(directories: list[str]) -> Base:
    """Load the signatures, and report on standard error those that cannot be loaded. The rest is used."""
    from_environment = [d for d in os.environ.get("EVERSTEP_KB_DIR", "").split(os.pathsep) if d]
    base = load_base(Path(d) for d in (*from_environment, *directories))
    for problem in base.problems:
        print(safe(f"everstep kb: refused {problem}"), file=sys.stderr)
    return base


def _match(given: argparse.Namespace, base: Base) -> int:
    matcher = Matcher(base, now=time.time())
    _feed(matcher, given.files)
    ordered = rank_findings(matcher.finish(), skew_s=given.skew)
    if given.remember:
        _queue().add(ordered)
    if matcher.num_dropped:
        print(f"everstep kb: {matcher.num_dropped} more findings were too many to keep", file=sys.stderr)
    if given.json:
        for finding in ordered:
            print(json.dumps(finding.to_json()))
        return 0
    shown = [f for f in ordered if given.all or _worth_showing(f)]
    choice = choose_verdict(ordered)
    print(safe(f"cause: {choice.why}" if choice.finding else f"no cause: {choice.why}"))
    for finding in shown:
        print(safe(_text(finding)))
    hidden = len(ordered) - len(shown)
    if hidden:
        print(f"({hidden} more are harmless or unknown; --all shows them)")
    return 0


def _worth_showing(finding: Finding) -> bool:
    if finding.action not in PASSIVE or finding.family == "traceback":
        return True
    return finding.role in ("cascade", "either")


def _text(finding: Finding) -> str:
    where = f"{one_line(finding.source)}:{finding.line}"
    times = f" x{finding.count}" if finding.count > 1 else ""
    ranks = f" ranks {_folded(finding.ranks)}" if finding.ranks else ""
    why = f"  <- {finding.explained_by}" if finding.explained_by else ""
    note = f"\n    note: {finding.note}" if finding.note else ""
    head = f"{finding.code}  {finding.title}  [{finding.role}, blame {finding.blame}, {finding.action}]{why}"
    return f"{head}\n    {where}{times}{ranks}  {one_line(finding.text[:200])}{note}"


def _folded(ranks: tuple[int, ...]) -> str:
    """0-3,7"""
    spans: list[list[int]] = []
    for rank in ranks:
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)


def _ls(given: argparse.Namespace, base: Base) -> int:
    word = given.word.lower()
    chosen = [s for s in base.signatures if word in f"{s.code} {s.klass} {s.component} {s.title}".lower()]
    for s in chosen:
        if given.json:
            row = {"code": s.code, "class": s.klass, "component": s.component, "role": s.role, "blame": s.blame}
            print(json.dumps(row | {"severity": s.severity, "action": s.action, "title": s.title, "from": s.origin}))
        else:
            print(safe(f"{s.code:<16} {s.component:<14} {s.role:<8} {s.blame:<9} {s.action:<22} {s.title}"))
    return 0


def _show(given: argparse.Namespace, base: Base) -> int:
    signature = base.find(given.code)
    if signature is None:
        near = [s.code for s in base.signatures if given.code.upper()[:5] in s.code][:8]
        raise ConfigError(
            f"no signature {given.code!r}" + (f"; near: {', '.join(near)}" if near else "; see everstep kb ls")
        )
    if given.json:
        print(json.dumps({"code": signature.code, "class": signature.klass, "text": entry(signature)}))
    else:
        print(safe(entry(signature)))
    return 0


def _unknown(given: argparse.Namespace, base: Base) -> int:
    if given.drop:
        if not _queue().drop(given.drop):
            raise ConfigError(f"nothing called {given.drop!r} is in the review queue")
        return 0
    if given.files:
        matcher = Matcher(base, now=time.time())
        _feed(matcher, given.files)
        entries = fold_unknown([], matcher.finish())
    else:
        entries = _queue().read()
    for item in entries:
        print(
            json.dumps(_as_json(item))
            if given.json
            else safe(f"{item.id}  {item.family:<14} x{item.count:<5} {item.text[:200]}")
        )
    if not entries and not given.json:
        print("Nothing waits for review. `everstep kb match --remember FILE` puts unknown lines here.")
    return 0


def _as_json(item: Unknown) -> dict[str, object]:
    return {name: getattr(item, name) for name in item.__struct_fields__}


def _queue() -> ReviewQueue:
    return ReviewQueue(runs.home() / "kb" / "unknown.jsonl")


def _feed(matcher: Matcher, files: list[str]) -> None:
    """Raises ConfigError for a file that cannot be opened. A file that breaks off is read up to there."""
    for name in files or ["-"]:
        if name == "-":
            _feed_stream(matcher, "-", sys.stdin.buffer)
            continue
        try:
            with Path(name).open("rb") as file:
                _feed_stream(matcher, name, file)
        except OSError as error:
            raise ConfigError(f"{name}: {error.strerror or error}") from error


def _feed_stream(matcher: Matcher, name: str, file: BinaryIO) -> None:
    for chunk in _chunks(name, file):
        matcher.feed(name, chunk)


def _chunks(name: str, file: BinaryIO) -> Iterator[bytes]:
    chunk = file.read(_CHUNK_BYTES)
    if not chunk.startswith(_GZIP):
        while chunk:
            yield chunk
            chunk = file.read(_CHUNK_BYTES)
        return
    try:
        yield from _unpacked(chunk, file)
    except zlib.error as error:
        print(safe(f"everstep kb: {name}: damaged, read up to there: {error}"), file=sys.stderr)


def _unpacked(chunk: bytes, file: BinaryIO) -> Iterator[bytes]:
    """The content of one or more gzip members, a bounded piece at a time. Raises zlib.error."""
    member = zlib.decompressobj(wbits=31)
    while chunk:
        piece = member.decompress(chunk, _CHUNK_BYTES)
        if piece:
            yield piece
        chunk = member.unconsumed_tail or member.unused_data or file.read(_CHUNK_BYTES)
        if member.eof and chunk:
            chunk = chunk.lstrip(b"\0")  # padding between members is allowed
            member = zlib.decompressobj(wbits=31)
    if not member.eof:
        yield member.flush()
    if not member.eof:
        raise zlib.error("the file ends early")
