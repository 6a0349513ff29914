"""Whether a line stands in a printed table of messages: in a listing of a program, its settings or its manual.

A text that knows what may go wrong is full of the words of faults: a dictionary of messages, the arms of a shell's
`case`, a docstring, a table of errors in Markdown. One line of it looks like a line of a log in JSON. The difference is
what opens the block: `NAME = {`, `case "$line" in`, a row of headings that promises a meaning or a remedy. A log has
records, which nothing opens but a bracket. Pure and bounded; asked by `matcher` for a line that matched.
"""

import re
from collections.abc import Iterable, Iterator

_LOOK_BACK_LINES = 200
_LOOK_BACK_BYTES = 16 << 10
_LOOK_AHEAD_BYTES = 4 << 10
_DEPTH = 8
_NEAR_LINES = 12
"""Where a listing's other lines are looked for above an opening that a log could have too."""

_MAX_LINE_BYTES = 2 << 10
"""Programs and manuals are written for people: longer lines are data."""

_TAG = re.compile(rb"\[(?:rank|default)\d{1,7}\]: ?")
_NUMBER = re.compile(rb" {0,6}(?:\d{1,6}[:|>] ?|\d{1,6}\t)|[+-](?= {2}|\t)")
"""What a listing or a diff puts before each line."""
_STRING = re.compile(rb"[rbfuLRBFU]{0,2}(?:\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'|`[^`]*`)")
_COMMENT = re.compile(rb"\s(?:#|//|--) .*$|\s*/\*.*\*/\s*$")
_WORDS = re.compile(rb"\w\s+\w")
_CODE = re.compile(rb"[\w\s.,:;=>{}()\[\]|+&*/%<?!$@-]*\Z")
_KEYWORDS = re.compile(
    rb"\b(?:if|else|for|in|not|and|or|is|lambda|return|raise|new|static|const|yield|await|case|default|except|as|from)\b"
)
_RECORD_KEY = re.compile(
    rb"[{,(\s]?[\"']?(?:message|msg|error|err|reason|exception|exc_info|traceback|detail|details|status|text|log|line"
    rb"|event|output|stderr|stdout|last_error|failure|cause)\w{0,8}[\"']?\s?(?::|=(?!=))",
    re.IGNORECASE,
)
"""Names under which records hold what was said."""
_KEYWORD_OPENS = re.compile(
    rb"(?:raise|return|assert|yield|throw|static|const|constexpr|inline|let|var|final|private|public|protected|export"
    rb"|enum|struct|typedef|declare|local|readonly|auto|extern|new)\b|std::|char\b|#define\b|@\w"
)
_CONSTANT_OPENS = re.compile(rb"(?:\w+\.)*_{0,2}[A-Z][A-Z0-9_]*(?:: [\w\[\], .|]{1,80})? \+?= ")
_PRIVATE_OPENS = re.compile(rb"_\w+(?:: [\w\[\], .|]{1,80})? \+?= ")
_CALL_OPENS = re.compile(rb"(?:[a-z_]\w*(?:\.|->|::))+[a-z_]\w*\($|(?:print|printf|fprintf|die|warn|fatal|error)\($")
_PLAIN_OPENS = re.compile(rb"[A-Za-z_][\w.\[\]\"']*(?:: [\w\[\], .|]{1,80})?\s?(?::?=|\()\s?")
_OPENING = re.compile(rb"[\[({]\s*\\?$")
_SOURCE = re.compile(
    rb"(?:(?:async )?def |class \w|import \w|from [\w.]+ import |return\b|raise\b|@\w+"
    rb"|(?:if|elif|while|for|with|try|else|except)\b.*:$"
    rb"|#include\b|#define\b|//|/\*|\"\"\"|func \w|package \w|fn \w|pub |use \w|local \w+=|function \w|set -|#!"
    rb"|\}$|\};$"
    rb"|(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w* = \S)"
)
_REPORTS = frozenset(
    {b"ERROR", b"ERRORS", b"REASON", b"STATUS", b"MESSAGE", b"EXCEPTION", b"CAUSE", b"RESULT", b"FAILURE", b"FAILURES"}
)
"""Constants whose value is what happened."""
_REPORTED = re.compile(rb"ERR|REASON|STATUS|MESSAGE|EXCEPT|CAUSE|FAIL|STATE|RESULT")
_WHOLE = re.compile(
    rb"(_{0,2}[A-Z][A-Z0-9_]+)(?:: [\w\[\], .|]{1,80})? = (?:[\w.]{1,60}\()?[\[({rbf]{0,3}[\"'].*[\"'\])}]$"
)

_ARM = re.compile(
    rb"\(?[^()\s\"']{0,80}(?:[\"'][^\"']*[\"'][^()\s\"']{0,40})*\)(?:\s|$)"
    rb"|\*?\S{1,80}\)(?:\s|$)|[\w ]{1,60}[\"'].*;;$"
)
_CASE = re.compile(rb"case\s.{1,80}\sin$")

_ROW = re.compile(rb"\|.*\|$")
_RULE = re.compile(rb"\|?(?:\s?:?-{2,}:?\s?\|)+(?:\s?:?-{2,}:?\s?\|?)?$")
_EXPLAINS = re.compile(
    rb"(?i:\b(?:meaning|fix|remedy|remediation|solution|resolution|workaround|explanation|description|notes?|advice"
    rb"|what (?:it|this) means|what to do|how to|possible cause|likely cause|suggested|see also|next step)\b)"
)
_INSTANCE = re.compile(
    rb"(?i:\b(?:rank|node|host|hostname|pid|time|timestamp|count|attempt|job ?id|pod|exit ?code|duration)\b)"
)
_BULLET = re.compile(rb"[-*+] (?:\*\*[^*]{2,200}\*\*|`[^`]{2,200}`)\s?(?::|-|\xe2\x80\x94|\xe2\x86\x92|=>|->)\s?\S")
_LEAST_BULLETS = 3

_YAML = re.compile(rb"(?:- )*[\"']?([\w-]{1,60})[\"']?:(?:\s|$)")
_YAML_ITEM = re.compile(rb"(?:- |[\"']?[\w-]{1,60}[\"']?:(?:\s|$))")
_IS_PATTERN = re.compile(
    rb"(?:\w*[_-])?(?:patterns?|regex(?:es|p|ps)?|signatures?|symptoms?|examples?|matches|match|allowlist|denylist|ignore"
    rb"|ignored|retryable|retry_on|known_errors|known_issues|troubleshooting|faq|contains|when_log_contains)$"
)
_IS_REMEDY = re.compile(rb"(?:fix|remedy|remediation|workaround|meaning|solution|resolution|explanation)$")
_JSON_KEY = re.compile(rb"[\"']([\w@.-]{1,60})[\"']\s?:\s?([\"'\[]?)")
_OF_RECORD = re.compile(
    rb"@?(?:time(?:stamp)?|ts|date(?:time)?|asctime|level(?:name)?|lvl|logger|(?:local_|global_)?rank|host(?:name)?|node"
    rb"|pid|pod|global_step|step|epoch|iteration|iter)$"
)
"""Keys that say when, where or how loudly something was said: it happened."""

_QUOTES = (b'"""', b"'''")
_DOC_OPENS = re.compile(rb"(?:.*[=(,:]\s*|return\s+)?[rfbu]{0,2}(?:\"\"\"|''')")
_OF_LOGS = re.compile(
    rb"(?m)^(?:\[[EW]\d{3,4} |\S{1,80}:\d+:\d+ \[|\[rank\d|NVRM:|\d{4}-\d\d-\d\d|\[\d{4}-|\[\s*\d+\.\d{6}\])"
)
"""How lines of logs begin that no manual quotes without indentation."""
_HEAD = re.compile(rb"(?:(?:async )?def|class)\s.*:$")
_OPTION = re.compile(rb"--?[a-zA-Z][\w-]*(?:[ =,](?:[A-Z\[{<-][\w\]}>|,.-]*|-\w))*\s{2,}\S")


class Listing:
    """The listing state of one stream. Remembers the end of what was read before, and the last answer: tables are
    long."""

    def __init__(self) -> None:
        self._before = b""
        self._last: tuple[int, int, bool] | None = None  # of the data at hand: where, how far indented, the answer

    def next_data(self, data: bytes) -> None:
        """This text has been read."""
        self._before = (self._before + data[-_LOOK_BACK_BYTES:])[-_LOOK_BACK_BYTES:]
        self._last = (self._last[0] - len(data), *self._last[1:]) if self._last is not None else None

    def has(self, data: bytes, begin: int, end: int) -> bool:
        """Whether the line at [begin, end) of this text is of a printed table of messages, or of a manual."""
        if end - begin > _MAX_LINE_BYTES:
            return False
        here = self._around(data, begin, end)
        return self._has(here) or (here.is_numbered() and self._has(here))

    def _has(self, here: "_Here") -> bool:
        line = here.bare()
        text = line.strip()
        if not text or _OF_LOGS.search(line):
            return False
        if _is_constant(text) or _OPTION.match(text) or _names_pattern(text):
            return True
        if _is_literal(text) and self._in_table(here, line, here.offset):
            return True
        if _ROW.match(text):
            return _in_markdown(here)
        if _BULLET.match(text):
            return _is_of_bullets(here)
        is_entry = (_ARM.match(text) and _in_case(here)) or (_YAML_ITEM.match(text) and _in_settings(here, line))
        return bool(is_entry) or here.is_in_docstring()

    def holds_traceback(self, data: bytes, begin: int, end: int) -> bool:
        """Whether a traceback that begins in this line is an example in a docstring."""
        here = self._around(data, begin, end)
        return here.is_in_docstring() or (here.is_numbered() and here.is_in_docstring())

    def _in_table(self, here: "_Here", line: bytes, offset: int) -> bool:
        """Whether the brackets that it stands in were opened by a statement of a program."""
        indent = _indent(line)
        known = self._last if self._last is not None and self._last[1] == indent else None
        answer = _is_in_table(here, line, (known[0] + offset, known[2]) if known is not None else None)
        self._last = (here.begin - offset, indent, answer)
        return answer

    def _around(self, data: bytes, begin: int, end: int) -> "_Here":
        if begin >= _LOOK_BACK_BYTES or not self._before:
            return _Here(data, begin, end, 0)
        moved = len(self._before)
        return _Here(self._before + data[: end + _LOOK_AHEAD_BYTES], moved + begin, moved + end, moved)


class _Here:
    """A line of a text, and what stands round it. `offset`: how much of the text was read before."""

    def __init__(self, data: bytes, begin: int, end: int, offset: int) -> None:
        self._data, self.begin, self._end, self.offset = data, begin, end, offset
        self._has_numbers = False

    def is_numbered(self) -> bool:
        """Whether it looks like a line of a listing. From here on all lines are taken without their numbers."""
        self._has_numbers = _NUMBER.match(self.bare()) is not None
        return self._has_numbers

    def bare(self) -> bytes:
        return self._bare(self._data[self.begin : self._end])

    def above(self) -> Iterator[tuple[int, bytes]]:
        """The lines above with their places, the nearest first."""
        end, lowest = self.begin - 1, max(0, self.begin - _LOOK_BACK_BYTES)
        for _ in range(_LOOK_BACK_LINES):
            if end < lowest:
                return
            begin = self._data.rfind(b"\n", lowest, end) + 1
            if begin == 0 and lowest > 0:
                return  # cut off
            yield begin, self._bare(self._data[begin:end])
            end = begin - 1

    def below(self) -> list[bytes]:
        after = self._data[self._end + 1 : self._end + 1 + _LOOK_AHEAD_BYTES]
        return [self._bare(line) for line in after.split(b"\n")]

    def is_in_docstring(self) -> bool:
        """Between the quotes that open the text of a program and those that close it."""
        before = self._data[max(0, self.begin - _LOOK_BACK_BYTES) : self.begin]
        for quotes in _QUOTES:
            at = before.rfind(quotes)
            if at < 0:
                continue
            lines = [self._bare(line) for line in before[before.rfind(b"\n", 0, at) + 1 :].split(b"\n")]
            head = self._bare(before[: before.rfind(b"\n", 0, at) + 1].rstrip().rsplit(b"\n", 1)[-1]).strip()
            if not _opens_text(lines[0].strip(), head, quotes) or _OF_LOGS.search(b"\n".join(lines)):
                continue
            is_closed = self._data.find(quotes, self._end, self._end + _LOOK_AHEAD_BYTES) >= 0
            is_inside = _indent(self.bare()) >= _indent(lines[0]) > 0 and _HEAD.match(head) is not None
            if is_closed or is_inside:
                return True
        return False

    def _bare(self, line: bytes) -> bytes:
        """Without what a launcher, a listing or a diff puts before it."""
        tag = _TAG.match(line)
        at = tag.end() if tag is not None else 0
        number = _NUMBER.match(line, at) if self._has_numbers else None
        return line[number.end() if number is not None else at :].rstrip()


def _indent(line: bytes) -> int:
    return len(line) - len(line.lstrip())


def _is_constant(text: bytes) -> bool:
    """A name in capitals with texts, in one line."""
    found = _WHOLE.match(text)
    if found is None or not _is_literal(text):
        return False
    return found[1] not in _REPORTS and (_REPORTED.search(found[1]) is None or len(_STRING.findall(text)) > 1)


def _is_literal(text: bytes) -> bool:
    """Nothing but texts in quotes, names, numbers and signs."""
    left, num_texts = _STRING.subn(b" , ", _COMMENT.sub(b"", text))
    return num_texts > 0 and _is_code(left)


def _is_code(text: bytes) -> bool:
    return _CODE.match(text) is not None and _WORDS.search(_KEYWORDS.sub(b",", text)) is None


def _is_in_table(here: _Here, line: bytes, known: tuple[int, bool] | None) -> bool:
    """`known`: the place of another line of the same indentation, and its answer."""
    indent, depth, is_bracket = _indent(line), 0, False
    is_record = _RECORD_KEY.match(line.strip()) is not None
    for begin, upper in here.above():
        text = upper.strip()
        if known is not None and begin == known[0] and depth == 0:
            return known[1]
        if not text or text.startswith((b"#", b"//", b"/*", b"*")):
            continue
        if is_bracket:
            return _opens(text + b" {", here, is_record=is_record)
        if _indent(upper) >= indent:
            if not _is_part(text):
                return False
            continue
        if not _OPENING.search(_COMMENT.sub(b"", text)):
            return False
        if _opens(text, here, is_record=is_record):
            return True
        is_bracket = text in (b"{", b"[", b"(") and _indent(upper) == 0
        if not (is_bracket or _is_literal(text) or text in (b"{", b"[", b"(")):
            return False
        indent, depth = _indent(upper), depth + 1
        if depth > _DEPTH:
            return False
    return False


def _is_part(text: bytes) -> bool:
    """Whether it is part of a table: an entry, a bracket, a number or a name."""
    return _is_literal(text) or _is_code(text)


def _opens(text: bytes, here: _Here, *, is_record: bool) -> bool:
    """Whether this opening is a program's: by itself, or because other lines of a program stand round it."""
    if _KEYWORD_OPENS.match(text):
        return True
    name = re.match(rb"_{0,2}[A-Z][A-Z0-9_]*", text)
    if _CONSTANT_OPENS.match(text) and (name is None or name[0] not in _REPORTS):
        return True
    if (_PRIVATE_OPENS.match(text) or _CALL_OPENS.match(text)) and not is_record:
        return True
    return _PLAIN_OPENS.match(text) is not None and _is_in_listing(here, text, 4 if is_record else 2)


def _is_in_listing(here: _Here, opening: bytes, least: int) -> bool:
    found, seen, is_past = 0, 0, False
    for _, upper in here.above():
        text = upper.strip()
        if not is_past:
            is_past = text == opening
            continue
        seen += 1
        found += _SOURCE.match(text) is not None
        if found >= least or seen >= _NEAR_LINES:
            break
    return found >= least


def _in_case(here: _Here) -> bool:
    for _, upper in here.above():
        text = upper.strip()
        if _CASE.match(text):
            return True
        if text == b"esac" or _OF_LOGS.search(text):
            return False
    return False


def _in_markdown(here: _Here) -> bool:
    """Whether it is a row of a table whose headings promise an explanation, and mention no rank, node or time."""
    is_ruled = False
    for _, upper in here.above():
        text = upper.strip()
        if is_ruled:
            return _EXPLAINS.search(text) is not None and _INSTANCE.search(text) is None
        if _RULE.match(text):
            is_ruled = True
        elif not _ROW.match(text):
            return False
    return False


def _is_of_bullets(here: _Here) -> bool:
    """Whether enough of them stand together. No more are looked at: a list may have thousands."""
    num = 1 + _num_bullets(upper for _, upper in here.above())
    return num >= _LEAST_BULLETS or num + _num_bullets(here.below()) >= _LEAST_BULLETS


def _num_bullets(lines: Iterable[bytes]) -> int:
    num = 0
    for line in filter(None, map(bytes.strip, lines)):
        if num >= _LEAST_BULLETS or not _BULLET.match(line):
            break
        num += 1
    return num


def _names_pattern(text: bytes) -> bool:
    """An object of JSON in one line that says what to look for, and what to do then."""
    if not text.startswith((b"{", b"[")):
        return False
    keys = [(key.lower(), bool(opens)) for key, opens in _JSON_KEY.findall(text)]
    if any(_OF_RECORD.match(key) for key, _ in keys):
        return False
    return any(is_text and (_IS_PATTERN.match(key) or _IS_REMEDY.match(key)) for key, is_text in keys)


def _in_settings(here: _Here, line: bytes) -> bool:
    """Whether it is an entry of YAML whose own key, or one beside or above it, is about patterns or remedies."""
    indent, is_item = _indent(line), line.strip().startswith(b"- ")
    own = _YAML.match(line.strip())
    if own is not None and _is_of_settings(own[1]):
        return True
    if not indent and not is_item:
        return False  # any exception with its text looks like that
    for _, upper in here.above():
        text = upper.strip()
        key = _YAML.match(text)
        if not text or text.startswith(b"#"):
            continue
        if not _YAML_ITEM.match(text) and _indent(upper) < indent:
            return False
        if _indent(upper) < indent or (_indent(upper) == indent and is_item and text.endswith(b":")):
            indent, is_item = _indent(upper), text.startswith(b"- ")
            if key is not None and _is_of_settings(key[1]):
                return True
            if indent == 0 and not text.startswith(b"- "):
                break
        elif key is not None and _IS_REMEDY.match(key[1].lower()):
            return True
    return _has_remedy_below(here, indent)


def _has_remedy_below(here: _Here, indent: int) -> bool:
    for lower in here.below()[:_NEAR_LINES]:
        key = _YAML.match(lower.strip())
        if _indent(lower) < indent or (key is None and lower.strip()):
            return False
        if key is not None and _IS_REMEDY.match(key[1].lower()):
            return True
    return False


def _is_of_settings(key: bytes) -> bool:
    return _IS_PATTERN.match(key.lower()) is not None or _IS_REMEDY.match(key.lower()) is not None


def _opens_text(line: bytes, head: bytes, quotes: bytes) -> bool:
    """Whether these quotes open: they are the only ones of their line, and stand under a head or behind an assignment,
    or have text behind them."""
    if line.count(quotes) != 1 or not _DOC_OPENS.match(line):
        return False
    if not line.startswith((quotes, b"r" + quotes, b"f" + quotes)):
        return True
    return head.endswith((b":", b"(", b"=", b",")) or len(line) > len(quotes) + 1
