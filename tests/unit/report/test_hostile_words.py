"""Everything that a rank, a node or a user can write, in every page that is handed on: it stays text."""

import json
from html.parser import HTMLParser
from pathlib import Path

import pytest

from everstep.goodput.figures import goodput_of
from everstep.journal.history import history_of
from everstep.journal.load import load_run
from everstep.notices.messages import MAX_CHARS, messages_of
from everstep.report.handing.html import incident_html
from everstep.report.handing.markdown import incident_markdown
from everstep.report.now.status import render_status
from everstep.report.parts.asked import Asked
from everstep.report.period.gather import edges_of, part_of, period_of
from everstep.report.period.render import render_html, render_markdown, render_text
from everstep.report.picture.incidents import incident_page
from everstep.report.picture.overview import Overview
from everstep.report.top.page import Look, render_top

JOURNAL = Path(__file__).parents[2] / "golden/journal.jsonl"
WORDS = {
    "markup": '<img src=x onerror="hurt()"><script>hurt()</script></title></style></pre>]]>-->',
    "quotes": "'\"`;{{7*7}}${7*7}javascript:hurt()",
    "escapes": "\x1b]0;x\x07\x1b[2J\x9b31m\x00\x08\r",
    "direction": "\u202eevil\u2066\u200f\u2028\u2029\ufeff",
    "broken": "\ufffd\uffff\ufdd0\U0010ffff\ue000",
    "long": "x" * 3_000_000,
    "lines": "a\n\n# b\n| c | d |\n![](http://x/)\n" * 50,
}
NAMES = {"markup": "<b onclick=hurt()>n1</b>", "quotes": "n1'\"&", "escapes": "n1\x1b[31m", "direction": "n1\u202e"}
FREE = (
    "sentence",
    "says",
    "why",
    "chosen",
    "message",
    "traceback",
    "detail",
    "program",
    "args",
    "host",
    "what",
    "rack",
)


def hurt(value, word, name=""):
    if isinstance(value, dict):
        return {key: hurt(each, word, key) for key, each in value.items()}
    if isinstance(value, list):
        return [hurt(each, word, name) for each in value]
    return f"{value} {word}" if isinstance(value, str) and name in FREE else value


@pytest.fixture(params=WORDS)
def view(request, tmp_path):
    """The golden run, as if all of it had been written by somebody who wants to be seen."""
    word, path = WORDS[request.param], tmp_path / "journal.jsonl"
    node = json.dumps(NAMES.get(request.param, "n1"))
    with path.open("w") as file:
        for number, line in enumerate(JOURNAL.read_text().splitlines()):
            few = word if request.param != "long" or number % 20 == 0 else word[:99]
            file.write(json.dumps(hurt(json.loads(line.replace('"n1"', node)), few), separators=(",", ":")) + "\n")
    return load_run(path)


class Tags(HTMLParser):
    """What a browser would make of it."""

    def __init__(self):
        super().__init__()
        self.found = set()

    def handle_starttag(self, tag, attrs):
        self.found.add(tag)
        assert not any(name.startswith("on") or name in ("href", "srcdoc", "action") for name, _ in attrs), attrs
        assert all("hurt" not in (value or "") for _, value in attrs), attrs


OURS = {
    "html", "head", "meta", "title", "style", "body", "h1", "h2", "p", "table", "tr", "td", "th", "pre", "svg",
    "rect", "text", "path", "line", "g", "ul", "ol", "li", "b", "small", "div", "span", "polyline", "details",
    "summary", "code",
}  # fmt: skip


def assert_page(text):
    tags = Tags()
    tags.feed(text)
    assert tags.found <= OURS, tags.found - OURS
    assert_text(text)


def assert_text(text):
    odd = {c for c in set(text) if not c.isprintable() and c not in "\n\t"}
    assert not odd, [hex(ord(c)) for c in odd]
    text.encode()


def test_what_is_handed_on_has_nobody_elses_markup_and_steers_nothing(view):
    asked = Asked(at=view.last_at, controller_pid=None)
    goodput = goodput_of(history_of(view))
    for incident in view.incidents.values():
        page = incident_page(view, incident, goodput)
        assert_page(incident_html(page, view.run))
        assert_text(incident_markdown(page, view.run).replace("\u200b", ""))  # ours: no @name calls anybody
    edges = edges_of(view.started_at, view.finished_at, 7)
    period = period_of("here", [part_of("golden", view, asked, edges)], edges)
    assert_page(render_html(period))
    assert_text(render_markdown(period).replace("\u200b", ""))
    for message in messages_of(view):
        assert_text(message.text)
        assert "\n" not in message.text
        assert len(message.text) <= MAX_CHARS


def test_what_is_shown_in_a_terminal_steers_nothing(view):
    asked = Asked(at=view.last_at, controller_pid=None)
    rows = Overview().rows(view, asked)
    for kind in ("overview", "incidents", "nodes", "ranks"):
        lines = render_top(rows, Look(view=kind, width=80, height=24))
        assert len(lines) == 24
        for line in lines:
            assert_text(line)
            assert "\n" not in line
            assert len(line) <= 80
    edges = edges_of(view.started_at, view.finished_at, 7)
    render_text(period_of("here", [part_of("golden", view, asked, edges)], edges))
    render_status(view, goodput_of(history_of(view)), asked)
