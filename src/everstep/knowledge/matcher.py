"""Many logs in, few findings out: the matcher that reads everything a job and its nodes print.

Streams of any chunking, any content and any length are read in bounded memory and linear time. Most text is only
passed through the screen of `engine`, a block at a time; lines at which it stops are taken apart and matched.
Pure: no files, no clock but the `now` it was given. Called by agents (logs, kernel log) and `everstep kb match`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from everstep.knowledge.blocks import (
    IN_PIPE,
    LINK_CAUSE,
    LINK_CONTEXT,
    AgentBlock,
    Traceback,
    Verdict,
    is_named,
    packed_exception,
    recorded_exception,
    what_links,
)
from everstep.knowledge.causality.finished import Finish
from everstep.knowledge.causality.linking import is_of_program
from everstep.knowledge.causality.listing import Listing
from everstep.knowledge.causality.progress import Watch, marks
from everstep.knowledge.causality.repeats import Repeats
from everstep.knowledge.causality.zeros import without_zeros
from everstep.knowledge.engine import Engine
from everstep.knowledge.findings import Finding, Fold, Seen, subject_of
from everstep.knowledge.lines import Clock, Line, clean, num_ends, own_rank, rank_in
from everstep.knowledge.loading import Base
from everstep.knowledge.screening.screen import MAX_LINE_BYTES, OVERLAP_BYTES
from everstep.knowledge.signature import Role, Signature

BLOCK_BYTES = 1 << 20
MAX_OPEN_BLOCKS = 4096
_LINK_BYTES = 300
_MAX_WATCHES = 256
_LOOK_BACK_BYTES = 8 << 10
_TRACEBACK = b"Traceback (most recent call last)"
_MESSAGE = b"message"
_IGNORED = (
    b"Exception ignored in",
    b"--- Logging error ---",
    b"Exception ignored on",
    b"Error in atexit._run_exitfuncs:",
)
_IGNORED_LINES = 4
"""The traceback of an ignored exception stands right below the line that says so."""
_AGENT = b"Root Cause (first observed failure)"
_NEXT_LINE = b"\\n"
"""How the end of a line is written within a line."""
_SXID = b"SXid"
_IN_SPAWN = b"In a process that was being started: "
"""Before what a new process could not read because its parent was gone."""
_THROWN = b"terminate called after throwing"
_WHAT = b"what():"


@dataclass(slots=True)
class _Stream:
    """One source: a log file, a kernel log, the output of one rank."""

    name: str
    offset_s: float | None
    tail: bytes = b""
    line: int = 0  # complete lines read so far
    last_at: float | None = None
    looked_to: int = 0  # where in the data at hand time stamps were already looked for
    before: bytes = b""  # end of the data before it, as far as stamps were not looked for there
    tracebacks: dict[bytes, Traceback] = field(default_factory=dict)
    agents: dict[bytes, AgentBlock] = field(default_factory=dict)
    raised: dict[bytes, tuple[str, ...]] = field(default_factory=dict)  # speaker: its last exception
    thrown: dict[bytes, tuple[int, Line]] = field(default_factory=dict)  # "terminate called": line number, line
    ignore_next: dict[bytes, int] = field(default_factory=dict)  # "Exception ignored in": speaker, line
    watches: dict[tuple[str, ...], Watch] = field(default_factory=dict)  # findings after which no training was seen
    at: int = 0  # where in the data at hand the line is that is read
    repeats: Repeats = field(default_factory=Repeats)
    data: bytes = b""  # the data at hand: a line without a stamp is dated by what stands before it
    finish: Finish = field(default_factory=Finish)
    listing: Listing = field(default_factory=Listing)
    sxid: str = ""  # switch and number of the last NVSwitch event


class Matcher:
    """Feed chunks by source, take the findings at the end."""

    def __init__(
        self, base: Base, *, now: float, offsets: Mapping[str, float] | None = None, engine: Engine | None = None
    ) -> None:
        """`offsets`: seconds to add to the stamps of a source; for a kernel log with uptime stamps, the boot time."""
        self._engine = engine or Engine(base.signatures)
        self._clock = Clock(now)
        self._offsets = dict(offsets or {})
        self._streams: dict[str, _Stream] = {}
        self._fold = Fold()
        self.arrived_at: float | None = None  # when set, the time of every line, instead of its stamp
        self.may_prepare = True  # False in a process that must not be kept waiting
        self.is_of_program = False  # when set, what looks like a line of the kernel log is what a program printed

    @property
    def num_dropped(self) -> int:
        """Findings that were too many to keep."""
        return self._fold.num_dropped

    def feed(self, source: str, chunk: bytes) -> None:
        """What was appended to that source."""
        stream = self._streams.get(source)
        if stream is None:
            stream = self._streams[source] = _Stream(source, self._offsets.get(source))
        for start in range(0, len(chunk), BLOCK_BYTES):
            self._take(stream, chunk[start : start + BLOCK_BYTES])

    def finish(self) -> list[Finding]:
        """Reads what has no line end yet and returns everything found, in the order in which it was first read."""
        for stream in self._streams.values():
            self._end(stream)
        return self.findings()

    def _end(self, stream: _Stream) -> None:
        if stream.tail:
            tail, stream.tail = stream.tail, b""
            self._read(stream, clean(tail) + b"\n")
        for block in stream.agents.values():
            self._close_agent(stream, block)
        for number, line in stream.thrown.values():
            self._report_thrown(stream, number, line)
        stream.agents.clear()
        stream.tracebacks.clear()
        stream.thrown.clear()
        self._fold.ended(stream.name, stream.line)

    def close(self, source: str) -> None:
        """This source has ended: reads what has no line end, and keeps nothing of it but the findings."""
        stream = self._streams.pop(source, None)
        if stream is not None:
            self._end(stream)

    def findings(self) -> list[Finding]:
        return self._fold.findings()

    def _take(self, stream: _Stream, chunk: bytes) -> None:
        end = chunk.rfind(b"\n") + 1  # there is none in the tail
        if end:
            is_all = not stream.tail and end == len(chunk)
            data = chunk if is_all else stream.tail + memoryview(chunk)[:end]  # copied once, not twice
            stream.tail = chunk[end:]
            self._read(stream, clean(data))
        else:
            stream.tail += chunk
        while len(stream.tail) >= MAX_LINE_BYTES:
            window, stream.tail = stream.tail[:MAX_LINE_BYTES], stream.tail[MAX_LINE_BYTES - OVERLAP_BYTES :]
            self._read(stream, clean(window))

    def _read(self, stream: _Stream, data: bytes) -> None:
        """Read complete lines, or one window of a longer line."""
        data = stream.repeats.without(data)
        position = counted = stream.looked_to = 0
        look = self._engine.look(data, may_prepare=self.may_prepare)
        while position < len(data):
            if stream.tracebacks or stream.agents or stream.thrown:
                position, counted = self._read_in_block(stream, data, position, counted)
                continue
            found = look.next_line(position)
            if found is None:
                break
            begin, end = found
            stream.line += data.count(b"\n", counted, begin)
            counted = begin
            self._line(stream, data, begin, end)
            position = end + 1
        stream.line += num_ends(data, counted)
        unseen = data[max(stream.looked_to, len(data) - _LOOK_BACK_BYTES) :]
        stream.before, stream.data = (stream.before + unseen)[-_LOOK_BACK_BYTES:], b""
        stream.finish.next_data(data)
        stream.listing.next_data(data)
        if stream.watches:
            self._look_for_progress(stream, data)

    def _look_for_progress(self, stream: _Stream, data: bytes) -> None:
        seen = list(marks(data))
        for key in [key for key, watch in stream.watches.items() if watch.has_moved_on(seen)]:
            del stream.watches[key]
            self._fold.move_on(key, stream.name)

    def _read_in_block(self, stream: _Stream, data: bytes, position: int, counted: int) -> tuple[int, int]:
        """Inside a block every line counts, also those that no signature knows."""
        end = data.find(b"\n", position)
        end = len(data) if end < 0 else end
        stream.at, stream.data = position, data
        stream.line += data.count(b"\n", counted, position)
        raw = data[position : min(end, position + MAX_LINE_BYTES)]
        part = self._clock.split(raw)
        if not self._feed_blocks(stream, part) and self._engine.matters(raw):
            self._line(stream, data, position, position + len(raw))
        return end + 1, position

    def _feed_blocks(self, stream: _Stream, part: Line) -> bool:
        """True when the line belonged to an open block of its speaker."""
        if self._says_what_was_thrown(stream, part):
            return True
        block = stream.tracebacks.get(part.tag)
        if block is not None:
            verdict = block.feed(part.message)
            if verdict is Verdict.MORE:
                return True
            del stream.tracebacks[part.tag]
            if verdict is Verdict.END:
                self._close_traceback(stream, block, part)
                return True
        agent = stream.agents.get(part.tag)
        if agent is not None:
            if agent.feed(part.message) is Verdict.END:
                del stream.agents[part.tag]
                self._close_agent(stream, agent)
            elif _TRACEBACK not in part.message:
                return not self._engine.matters(part.message)
        return False

    def _line(self, stream: _Stream, data: bytes, begin: int, end: int) -> None:
        """A line, or a window of a very long one, that may match."""
        stream.at = begin
        for raw in data[begin:end].split(b"\r"):
            if not raw:
                continue
            part = self._clock.split(raw)
            stream.data = data
            if self._is_whole_traceback(stream, part):
                continue
            if _is_ignored(stream, part):
                continue
            if not self._engine.is_source(part.message.lstrip()):
                stream.finish.read(part.message, stream.line + 1, end)
            if _TRACEBACK in part.message and stream.listing.holds_traceback(data, begin, end):
                continue
            if self._opens_block(stream, part, data[max(0, begin - _LINK_BYTES) : begin]):
                self._when(stream, part)
                continue
            self._match_and_report(stream, part, raw, end)

    def _is_whole_traceback(self, stream: _Stream, part: Line) -> bool:
        """A traceback in one line: its head, and its exception further on; or the exception that a rank recorded."""
        name = recorded_exception(part.message) if _MESSAGE in part.message else b""
        at = part.message.find(_TRACEBACK)
        if at < 0 and not name:
            return False
        name = name or packed_exception(part.message[:at], part.message[at + len(_TRACEBACK) :])
        if name:
            self._close_traceback(stream, Traceback(stream.line + 1, 0, ignored=False), part, name)
        return bool(name)

    def _match_and_report(self, stream: _Stream, part: Line, raw: bytes, end: int = 0) -> None:
        """`end`: where the line at hand ends in its data; 0: it stands further above."""
        from_kernel = part.from_kernel and not self.is_of_program
        signature = self._engine.match(raw, part.message.lstrip(b" \t"), from_kernel=from_kernel)
        if signature is not None and not from_kernel and self._counts_none(part.message):
            return
        if signature is not None and not from_kernel and end and stream.listing.has(stream.data, stream.at, end):
            return
        if signature is not None:
            self._report(stream, signature, part, raw)
        elif not from_kernel and not stream.repeats.is_full:
            words = self._engine.harmless_words(part.message)
            if words:
                stream.repeats.note(words)

    def _counts_none(self, message: bytes) -> bool:
        """Whether nothing is left that is known when what it counts none of is taken out."""
        left = without_zeros(message)
        return left != message and self._engine.match(left, left.lstrip(b" \t")) is None

    def _says_what_was_thrown(self, stream: _Stream, part: Line) -> bool:
        """C++ names the type on one line and the reason on the next: the reason is the fault, if it is known."""
        thrown = stream.thrown.pop(part.tag, None)
        if thrown is None:
            return False
        number, line = thrown
        what = part.message.lstrip()
        reason = what[len(_WHAT) :].strip() if what.startswith(_WHAT) else b""
        signature = self._engine.match(reason, reason, in_traceback=True) if reason else None
        if signature is None or signature.is_unknown:
            self._report_thrown(stream, number, line)
            return False
        self._report(stream, signature, part, reason)
        return True

    def _report_thrown(self, stream: _Stream, number: int, line: Line) -> None:
        now, stream.line = stream.line, number - 1
        self._match_and_report(stream, line, line.message)
        stream.line = now

    def _look_back(self, stream: _Stream) -> None:
        """A line without a time happened when the last stamp before it says. Each byte is looked at once at most, and
        only for lines that mean something."""
        begin = stream.at
        unseen = stream.before + stream.data[max(stream.looked_to, begin - _LOOK_BACK_BYTES) : begin]
        earlier = self._clock.last_stamp(unseen[-_LOOK_BACK_BYTES:])
        if earlier is not None:
            stream.last_at = earlier + (stream.offset_s or 0.0)
        stream.looked_to, stream.before = begin, b""

    def _opens_block(self, stream: _Stream, part: Line, before: bytes) -> bool:
        """`before`: the text in front of the line, where a traceback says whether it follows from another one."""
        message = part.message
        if message.startswith(_IGNORED):
            if len(stream.ignore_next) < MAX_OPEN_BLOCKS:
                stream.ignore_next[part.tag] = stream.line
            return True
        at = message.find(_TRACEBACK)
        if at >= 0 and _NEXT_LINE not in message[at:]:
            if len(stream.tracebacks) < MAX_OPEN_BLOCKS:
                ignored = stream.line - stream.ignore_next.pop(part.tag, -_IGNORED_LINES) < _IGNORED_LINES
                indent = 2 if message[:at].lstrip().startswith(b"traceback :") else _indent(message)
                stream.tracebacks[part.tag] = Traceback(stream.line + 1, indent, ignored)
                stream.tracebacks[part.tag].link = what_links(before)
            return True
        if message.startswith(_THROWN) and _WHAT not in message and len(stream.thrown) < MAX_OPEN_BLOCKS:
            stream.thrown[part.tag] = (stream.line + 1, part)
            return True
        if _AGENT in message:
            if len(stream.agents) < MAX_OPEN_BLOCKS:
                stream.agents[part.tag] = AgentBlock(stream.line + 1)
            return True
        return False

    def _close_traceback(self, stream: _Stream, block: Traceback, part: Line, name: bytes = b"") -> None:
        name = name or block.name(part.message)
        if block.ignored or name.startswith((LINK_CAUSE, LINK_CONTEXT)):
            return
        signature = self._engine.match(name, name, in_traceback=True) or self._engine.fallback
        is_open = signature is None or signature.role in (Role.UNKNOWN, Role.CASCADE) or block.raised_in == IN_PIPE
        if block.raised_in and is_open and not is_of_program(name.decode("utf-8", "replace")):
            signature = self._engine.match(name, block.raised_in + name, in_traceback=True) or signature
        if block.is_of_spawn:
            signature = self._engine.match(_IN_SPAWN + name, _IN_SPAWN + name, in_traceback=True) or signature
        if signature is not None:
            when, rank = self._when(stream, part), own_rank(name) if part.rank is None else part.rank
            place, chained = block.place, bool(block.link)
            if part.tag in stream.raised and block.fails_in_handler(is_of_program(name.decode("utf-8", "replace"))):
                self._fold.handle(stream.raised[part.tag])
                chained = False
            key = self._add(stream, signature, name, rank, when, place=place, is_exception=True, is_chained=chained)
            if key is not None and len(stream.raised) < MAX_OPEN_BLOCKS:
                stream.raised[part.tag] = key

    def _close_agent(self, stream: _Stream, block: AgentBlock) -> None:
        if block.exitcode is None:
            return
        text = block.as_line()
        signature = self._engine.match(text, text)
        if signature is not None:
            line, stream.line = stream.line, block.first_line - 1
            at = stream.last_at if self.arrived_at is None else self.arrived_at
            self._add(stream, signature, text, block.rank, at)
            stream.line = line

    def _report(self, stream: _Stream, signature: Signature, part: Line, raw: bytes) -> None:
        if _SXID in raw and self._joins_switch_event(stream, signature, raw):
            return
        rank = part.rank if part.rank is not None else rank_in(part.message)
        when, kernel = self._when(stream, part), part.from_kernel and not self.is_of_program
        self._add(
            stream,
            signature,
            part.message or raw,
            rank,
            when,
            from_kernel=kernel,
            is_calm=self._engine.is_calm(raw, part.message),
        )

    def _joins_switch_event(self, stream: _Stream, signature: Signature, raw: bytes) -> bool:
        """Detail lines repeat the number of the event line before them: one fault, not four."""
        number = raw[raw.find(b"): ") + 3 :].split(b",", 1)[0].strip()
        event = f"{subject_of(raw)} {number[:12].decode('latin-1')}"
        if signature.klass == "nvswitch_detail_line":
            return event == stream.sxid
        stream.sxid = event
        return False

    def _when(self, stream: _Stream, part: Line) -> float | None:
        if self.arrived_at is not None:
            return self.arrived_at
        if part.at is not None:
            stream.last_at = part.at + (stream.offset_s or 0.0)
        elif part.uptime is not None:
            if stream.offset_s is None:
                return None
            stream.last_at = part.uptime + stream.offset_s
        elif stream.at >= stream.looked_to:
            self._look_back(stream)
        return stream.last_at

    def _add(
        self,
        stream: _Stream,
        signature: Signature,
        text: bytes,
        rank: int | None,
        at: float | None,
        *,
        place: str = "",
        from_kernel: bool = False,
        is_exception: bool = False,
        is_chained: bool = False,
        is_calm: bool = False,
    ) -> tuple[str, ...] | None:
        """The key of the finding; None: there is no room for one more."""
        seen = Seen(
            source=stream.name,
            line=stream.line + 1,
            at=at,
            rank=rank,
            place=place,
            from_kernel=from_kernel,
            is_exception=is_exception,
            is_chained=is_chained,
            is_calm=is_calm,
            finished_line=stream.finish.line_before(stream.data, stream.at),
        )
        key = self._fold.add(signature, text, seen)
        if key is not None and (key in stream.watches or len(stream.watches) < _MAX_WATCHES):
            stream.watches[key] = Watch(stream.at, is_probe=signature.probe)
        return key


def _indent(message: bytes) -> int:
    return len(message) - len(message.lstrip(b" "))


def _is_ignored(stream: _Stream, part: Line) -> bool:
    """Whether it is the exception right below the line by which Python announces that it ignores it, with no traceback
    between."""
    said_at = stream.ignore_next.get(part.tag)
    if said_at is None or stream.line != said_at + 1 or not is_named(part.message):
        return False
    del stream.ignore_next[part.tag]
    return True
