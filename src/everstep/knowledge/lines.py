"""What stands in front of a message: time stamps, rank tags, host names, log levels; and what is wrapped round it.

Pure and linear. A line is bytes of any content. Called by `matcher` for the few lines that the screen has stopped at,
and for whole blocks only to take colours and carriage returns out.
"""

import calendar
import re
import sys
from dataclasses import dataclass

import re2

_ANSI = re.compile(rb"\x1b(?:\[[0-?]{0,16}[ -/]{0,4}[@-~]|\][^\x07\x1b\n]{0,256}(?:\x07|\x1b\\)|[@-Z\\^_])")
_LATIN1 = re2.Options()
_LATIN1.encoding = re2.Options.Encoding.LATIN1
_LONE_RETURN = re2.compile(rb"\r[^\n]", _LATIN1)
"""A carriage return within a line, as progress bars write it: a line of its own begins behind it."""

_RANK_TAG = re.compile(
    rb"\[(?:rank|default|trainer|worker|Rank |RANK )[ :]?(\d{1,7})(?:\|[^\]]{0,20})?\]:?\s?"  # torch, torchrun -t
    rb"|\[(\d{1,5})\]:\s?"  # torchrun --tee, where the role has no name
    rb"|(\d{1,6}): "  # srun --label
    rb"|\[\d{1,6},(\d{1,7})\]<std(?:out|err|diag)>:\s?"  # mpirun --tag-output
    rb"|[0-9a-f]{8} \[rank=(\d{1,7})\] \|\| ?"  # determined
    rb"|\((?:[\w.:\[\]/-]{1,40} ){0,3}pid=\d{1,9}(?:, ip=[\d.:a-f]{3,39})?\)\s?"  # ray, vLLM
    rb"|\([A-Za-z]\w{2,40}(?:, ip=[\d.:a-f]{3,39})?\) (?=\S)"  # ray's own daemons, wrappers of a program's parts
    rb"|\[std(?:out|err)\]:?\s?"  # Azure ML
    rb"|[\w.-]{1,63}[-_]\d{1,4} {1,40}\| (?=\S)"  # docker compose
)
_HOST_TAG = re.compile(
    rb"(?:[a-z][a-z0-9.]{0,40}-[a-z0-9.-]{0,60}|\d{1,3}(?:\.\d{1,3}){3}): (?=\S)"
    rb"|\d{1,3}(?:\.\d{1,3}){3} \[\d{1,5}\] (?=\S)"
)
"""What pdsh, xla_dist and the like put before a line: whose line it is."""
_STAMP = re.compile(
    rb"\[?(\d{4})[-/](\d\d)[-/](\d\d)[T\- ](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?"
    rb" ?(?:Z|UTC|[+-]\d\d:?\d\d)?\]?(?:[\s:,|-]{1,4}|$)"
)
_SYSLOG = re.compile(rb"([A-Z][a-z]{2}) ([ \d]\d) (\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))? ")
_SYSLOG_HOST = re.compile(rb"[\w.-]{1,64} (?:kernel|[\w@./-]{1,40}(?:\[\d{1,9}\])?): ")
_CTIME = re.compile(rb"\[[A-Z][a-z]{2} ([A-Z][a-z]{2}) ([ \d]\d) (\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))? (\d{4})\]\s?")
_UPTIME = re.compile(rb"\[\s{0,8}(\d{1,9})\.(\d{1,6})\]\s?")
_GLOG = re.compile(rb"\[?[IWEF](\d{1,2})(\d\d) (\d\d):(\d\d):(\d\d)\.(\d{1,9})\s+(?:\d{1,9} )?")
_KMSG = re.compile(rb"\d{1,3},\d{1,12},(\d{1,18}),[^;\n]{1,40};")
_OTHER = re.compile(
    rb"<\d{1,3}>"  # kmsg level
    rb"|\[\s{0,8}\+\d{1,9}\.\d{1,9}\]\s?"  # dmesg --delta
    rb"|\[\s{0,6}[TC]\d{1,7}\]\s?"  # kernel thread tag
    rb"|\[[A-Z][a-z]{2} ?\d{1,2} \d\d:\d\d\]\s?"  # dmesg --reltime
    rb"|std(?:out|err) [FP] "  # CRI
    rb"|kernel: "
    rb"|> "  # quoted
    rb"|std(?:out|err): "  # accelerate, pdsh wrappers
    rb"|(?:(?:\[|- |: ?)?(?:ERROR|CRITICAL|FATAL|Error)(?:\]|:| -) )"
    rb"|(?:ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d \[?[\w./]{1,80}:\d{1,6}\] ?"  # vLLM, and what is built on it
)
_MONTHS = {m.encode(): n for n, m in enumerate(("Jan", "Feb", "Mar", "Apr", "May", "Jun"), 1)} | {
    m.encode(): n for n, m in enumerate(("Jul", "Aug", "Sep", "Oct", "Nov", "Dec"), 7)
}
_MAX_PREFIXES = 8
_SAMPLE_BYTES = 4 << 10
_LONG_LINE_BYTES = 64
_ANY_STAMP = re.compile(rb"\d{4}[-/]\d\d[-/]\d\d[T\- ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?")
_OWN_RANK = re.compile(
    rb"[\w.]{1,120}: \[?[Rr]ank[ :]{0,2}(\d{1,7})\]?(?::|,(?! (?:\d|(?i:rank|and|which|that|who|but|or)\b))) "
)
_WITHIN = ("local", "node", "host", "group", "machine", "dp", "tp", "pp", "cp", "ep", "parallel", "data", "tensor")
"""Words before "rank" whose number is not that of the rank in the job."""
_FORMS = [form for word in _WITHIN for form in (word, word.title(), word.upper())]
_NOT_WITHIN = "".join(rf"(?<!\b{form}[ _-])" for form in _FORMS).encode()
_ACCUSED = re.compile(r"\bwhile [Rr]ank (\d{1,7}) (?:has|had|is|was|got|expects?|uses?)\b")
_RANK_IN_TEXT = re.compile(rb"\[?" + _NOT_WITHIN + rb"[Rr]ank[ :]{0,2}(\d{1,7})\b")


@dataclass(slots=True)
class Line:
    """One line taken apart."""

    message: bytes  # what is left when stamps and tags are gone
    tag: bytes  # the rank tag as written: the rank of the line, in a stream of many ranks
    rank: int | None
    at: float | None  # wall clock, seconds since the epoch
    uptime: float | None  # kernel clock, seconds since boot
    from_kernel: bool = False  # it bears the stamp or the name of the kernel's log


def clean(block: bytes) -> bytes:
    """Without colours and carriage returns before a line end. The number of lines stays."""
    if b"\x1b" in block:
        block = _ANSI.sub(b"", block)
    if b"\r" not in block:
        return block
    if block.endswith(b"\r") or _LONE_RETURN.search(block):
        return block.replace(b"\r\n", b"\n")
    return block.replace(b"\r", b"")  # taking out one byte costs a twentieth of replacing two


def num_ends(data: bytes, begin: int = 0) -> int:
    """How many line ends stand from there on. Until 3.13 Python counts them byte after byte; to take them out it jumps
    from one to the next, which is faster where lines are long."""
    length = len(data) - begin
    if sys.version_info >= (3, 13) or begin or length < _SAMPLE_BYTES:
        return data.count(b"\n", begin)
    is_dense = data.count(b"\n", 0, _SAMPLE_BYTES) > _SAMPLE_BYTES // _LONG_LINE_BYTES
    return data.count(b"\n") if is_dense else length - len(data.replace(b"\n", b""))


class Clock:
    """Makes seconds of stamps. Stamps without a year are put into the year that ends at `now`."""

    def __init__(self, now: float) -> None:
        self._now = now
        self._year = _year_of(now)

    def wall(
        self, year: int | None, month: int, day: int, second: tuple[bytes, bytes, bytes], rest: bytes
    ) -> float | None:
        hours, minutes, seconds = (int(part) for part in second)
        if not (1 <= month <= 12 and 1 <= day <= 31 and hours < 24 and minutes < 60 and seconds < 61):
            return None
        at = float(calendar.timegm((year or self._year, month, day, hours, minutes, seconds)))
        if year is None and at > self._now + 86400.0:
            at = float(calendar.timegm((self._year - 1, month, day, hours, minutes, seconds)))
        return at + (float(b"0." + rest) if rest else 0.0)

    def last_stamp(self, text: bytes) -> float | None:
        """The last full time stamp in a piece of text."""
        stamps = _ANY_STAMP.findall(text)
        match = _STAMP.match(stamps[-1]) if stamps else None
        return self._of_stamp(match) if match else None

    def split(self, line: bytes) -> Line:
        """Takes off, from the left, everything that is not the message."""
        out = Line(message=line, tag=b"", rank=None, at=None, uptime=None)
        position = 0
        for _ in range(_MAX_PREFIXES):
            end = self._one_prefix(line, position, out)
            if end == position:
                break
            position = end
        out.message = line[position:]
        out.from_kernel = out.from_kernel or out.uptime is not None or b"kernel: " in line[:position]
        return out

    def _one_prefix(self, line: bytes, position: int, out: Line) -> int:
        """Where the prefix that begins at `position` ends; `position` itself if there is none."""
        if match := _RANK_TAG.match(line, position):
            out.tag += match[0]
            number = next((group for group in match.groups() if group), None)
            if number and out.rank is None:
                out.rank = int(number)
            return match.end()
        if match := _HOST_TAG.match(line, position):
            out.tag += match[0]
            return match.end()
        if match := _UPTIME.match(line, position):
            out.uptime = float(match[1] + b"." + match[2])
            return match.end()
        if match := _KMSG.match(line, position):
            out.uptime = int(match[1]) / 1e6
            return match.end()
        end = self._wall_clock(line, position, out)
        if end != position:
            return end
        match = _OTHER.match(line, position)
        return match.end() if match else self._after_host(line, position, out)

    def _wall_clock(self, line: bytes, position: int, out: Line) -> int:
        if match := _STAMP.match(line, position):
            out.at = self._of_stamp(match)
            return match.end()
        if match := _GLOG.match(line, position):
            month, day = int(match[1]), int(match[2])
            out.at = self.wall(None, month, day, (match[3], match[4], match[5]), match[6])
            return match.end()
        if match := _SYSLOG.match(line, position):
            if named := _MONTHS.get(match[1]):
                out.at = self.wall(None, named, int(match[2]), (match[3], match[4], match[5]), match[6] or b"")
            host = _SYSLOG_HOST.match(line, match.end())
            return host.end() if host else match.end()
        if match := _CTIME.match(line, position):
            if named := _MONTHS.get(match[1]):
                second = (match[3], match[4], match[5])
                out.at = self.wall(int(match[7]), named, int(match[2]), second, match[6] or b"")
            out.from_kernel = True
            return match.end()
        return position

    def _after_host(self, line: bytes, position: int, out: Line) -> int:
        """journald writes "stamp host kernel: message"."""
        if out.at is None or b" kernel: " not in line[position : position + 80]:
            return position
        host = _SYSLOG_HOST.match(line, position)
        return host.end() if host else position

    def _of_stamp(self, match: "re.Match[bytes]") -> float | None:
        year, month, day = int(match[1]), int(match[2]), int(match[3])
        if not 1970 <= year <= 9998:
            return None
        return self.wall(year, month, day, (match[4], match[5], match[6]), match[7] or b"")


def own_rank(raised: bytes) -> int | None:
    """The rank that an exception gives as its own: "AssertionError: Rank 3: ...". Elsewhere it may speak of another."""
    match = _OWN_RANK.match(raised)
    return None if match is None else int(match[1])


def rank_in(text: bytes) -> int | None:
    """A rank that the message itself names: "[Rank 3]". Of several within a sentence, none is the one."""
    head = text[:400]
    match = _RANK_IN_TEXT.search(head)
    if match is None:
        return None
    is_first = not head[: match.start()].strip(b" [(")
    if not is_first and any(other != match[1] for other in _RANK_IN_TEXT.findall(head)):
        return None
    return int(match[1])


def accused_in(text: str) -> int | None:
    """The rank that a message holds against the one that prints it: "Rank 2 has 363, while rank 0 has 0"."""
    match = _ACCUSED.search(text)
    return None if match is None else int(match[1])


def _year_of(now: float) -> int:
    year = 1970 + int(now // 31556952)
    # The division above is off by a day at most around New Year; settle it.
    while calendar.timegm((year + 1, 1, 1, 0, 0, 0)) <= now:
        year += 1
    while calendar.timegm((year, 1, 1, 0, 0, 0)) > now:
        year -= 1
    return year
