"""Show what disturbed the run, what it cost, what was done.

everstep incident [ls] [RUN]        one line per incident
everstep incident show ID [RUN]     one of them: verdict, phases, timeline, evidence, decision ("last" works too)
everstep incident ID [RUN]          the same
everstep incident ID [RUN] --md     as Markdown, for a ticket; --html: as one HTML file that needs no access
"""

import argparse
import re

from everstep.cli.reading import Opened, add_run_arguments, find_incident, open_run, show, show_json, style
from everstep.errors import ConfigError
from everstep.report.asjson import incident_json
from everstep.report.incidents.incident import render_incident, render_incidents

_ID = re.compile(r"i\d+|last")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("words", nargs="*", metavar="ls | show ID", help="default: ls; a RUN may follow")
    add_run_arguments(parser, positional=False)
    forms = parser.add_mutually_exclusive_group()
    forms.add_argument("--md", action="store_true", help="of one incident: Markdown")
    forms.add_argument("--html", action="store_true", help="of one incident: an HTML file that asks for nothing else")


def run(given: argparse.Namespace) -> int:
    name, run_name = _understand(given.words)
    opened = open_run(run_name, given.run_dir)
    if given.md or given.html:
        return _export(opened, name or "last", as_html=given.html)
    return _list(opened, given.json) if name is None else _show(opened, name, given.json)


def _understand(words: list[str]) -> tuple[str | None, str | None]:
    """(incident or None for the list, run or None). Raises ConfigError."""
    name = None
    if words and words[0] == "ls":
        words = words[1:]
    elif words and words[0] == "show":
        if len(words) < 2:
            raise ConfigError("everstep incident show needs an incident: i1, i2, ... or last")
        name, words = words[1], words[2:]
    elif words and _ID.fullmatch(words[0]):
        name, words = words[0], words[1:]
    if len(words) > 1:
        raise ConfigError(f"too many words: {' '.join(words)}. everstep incident [ls | show ID] [RUN]")
    return name, words[0] if words else None


def _export(opened: Opened, name: str, *, as_html: bool) -> int:
    from everstep.report.handing.html import incident_html
    from everstep.report.handing.markdown import incident_markdown
    from everstep.report.picture.incidents import incident_page

    page = incident_page(opened.view, find_incident(opened.view, name), opened.goodput)
    show((incident_html if as_html else incident_markdown)(page, opened.view.run))
    return 0


def _list(opened: Opened, as_json: bool) -> int:
    view = opened.view
    if as_json:
        show_json({"run": view.run, "incidents": [incident_json(view, i) for i in view.incidents.values()]})
    else:
        show(render_incidents(view, opened.asked, style()))
    return 0


def _show(opened: Opened, name: str, as_json: bool) -> int:
    incident = find_incident(opened.view, name)
    if as_json:
        show_json(incident_json(opened.view, incident))
    else:
        show(render_incident(opened.view, incident, style()))
    return 0
