"""A trace of a rank that lives on another host: asked of the controller, recorded by the rank's own node, and sent to
this host as evidence is: in pieces, again after a broken connection, 32 MiB at most."""

import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from everstep.agent.tracing import files
from everstep.agent.tracing.tracer import END_S, FLIGHT_S, START_S
from everstep.cli.ask import named, post
from everstep.errors import ConfigError, UnreachableError
from everstep.journal.reader import Cursor
from everstep.journal.runs import RunDir
from everstep.linux.regular import read_regular
from everstep.model.actions import Refused, TraceRank
from everstep.model.events import RankTraced
from everstep.model.record import Record
from everstep.report.now.trace import Statement, Summary

ARRIVAL_S = 60.0
"""From the node's word that it is done to the file's last byte."""

ANSWER_S = START_S + FLIGHT_S + END_S
POLL_S = 0.2


class _Other(msgspec.Struct):
    begin: float
    end: float
    tracks: list[Statement]


class _Event(msgspec.Struct):
    pid: int = 0


class _File(msgspec.Struct):
    other: _Other = msgspec.field(name="otherData")
    events: list[_Event] = msgspec.field(name="traceEvents")


def record_elsewhere(
    run_dir: RunDir, rank: int, seconds: float, show: Callable[[float], None]
) -> tuple[Summary, Path, bytes]:
    """Have the rank's own node record a trace, and return its summary, its path on this host, and its content. Raises
    ConfigError with the reason why there is no trace, and UnreachableError."""
    cursor = Cursor(run_dir.journal)
    cursor.read()  # what was before is not ours
    request = named(post(run_dir, "/api/trace", {"rank": rank, "seconds": seconds}), "request")
    asked, told = _await_answer(cursor, request, seconds, show)
    if not told.file:
        raise ConfigError(f"rank {rank} could not be traced by {told.node}: {told.why}")
    # Its name by our own reckoning: what an agent says names no file here.
    path = run_dir.path / files.FOLDER / files.name_of(request, asked.generation, rank)
    data = _await_file(path, told)
    try:
        found = msgspec.json.decode(data, type=_File)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{path} cannot be read as a trace: {error}") from error
    pid, other = next((each.pid for each in found.events if each.pid), 0), found.other
    generation = asked.generation
    told_of = Summary(rank=rank, pid=pid, generation=generation, begin=other.begin, end=other.end, tracks=other.tracks)
    return told_of, path, data


def _await_answer(
    cursor: Cursor, request: str, seconds: float, show: Callable[[float], None]
) -> tuple[TraceRank, RankTraced]:
    asked: TraceRank | None = None
    begun = time.monotonic()
    while (passed_s := time.monotonic() - begun) < seconds + ANSWER_S:
        for record in cursor.read():
            if not isinstance(record, Record):
                continue
            for action in record.actions:
                if isinstance(action, TraceRank) and action.incident == request:
                    asked = action
                elif isinstance(action, Refused) and action.what == f"trace {request}":
                    raise ConfigError(f"no trace: {action.why}")
            event = record.event
            if asked is not None and isinstance(event, RankTraced) and _answers(event, asked):
                return asked, event
        show(min(passed_s, seconds))
        time.sleep(POLL_S)
    node = asked.node if asked is not None else "its node"
    raise UnreachableError(f"{node} did not say within {seconds + ANSWER_S:g} s what became of the trace ({request})")


def _answers(event: RankTraced, asked: TraceRank) -> bool:
    """Whether it is the answer of the node that was asked."""
    told = (event.incident, event.node, event.rank, event.generation)
    return told == (asked.incident, asked.node, asked.rank, asked.generation)


def _await_file(path: Path, told: RankTraced) -> bytes:
    """Whole, as long as the node says that it is. Raises ConfigError: where it is then."""
    deadline = time.monotonic() + ARRIVAL_S
    while True:
        try:
            data = read_regular(path, files.MAX_SENT_BYTES, follow=False)
        except OSError:
            data = b""
        if data and len(data) == told.num_bytes:
            return data
        if time.monotonic() >= deadline:
            where = f" as {told.path}" if told.path else ""
            raise ConfigError(
                f"the trace was recorded on node {told.node}{where}, and has not arrived within {ARRIVAL_S:g} s: "
                "copy it from there"
            )
        time.sleep(POLL_S)
