"""What disturbed the run, what it cost, what was done.

everstep incident [ls] [RUN]        one line per incident
everstep incident show ID [RUN]     one of them: verdict, phases, timeline, evidence, decision ("last" works too)
everstep incident ID [RUN]          the same
"""

import argparse
import re

from everstep.cli.reading import Opened, add_run_arguments, find_incident, open_run, show, show_json, style
from everstep.errors import ConfigError
from everstep.report.asjson import incident_json
from everstep.report.incident import render_incident, render_incidents

_ID = re.compile(r"i\d+|last")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("words", nargs="*", metavar="ls | show ID", help="default: ls; a RUN may follow")
    add_run_arguments(parser, positional=False)


def run(given: argparse.Namespace) -> int:
    name, run_name = _understand(given.words)
    opened = open_run(run_name, given.run_dir)
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
