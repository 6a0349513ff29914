"""Why a decision was taken and why not another, or what a verdict code means.

everstep explain i3 [RUN]      the decision of an incident ("last" works too)
everstep explain v1 [RUN]      what became of an update
everstep explain ES-P09        the page of a code
"""

import argparse
import dataclasses

from everstep.cli.reading import add_run_arguments, find_incident, open_run, show, show_json, style
from everstep.errors import ConfigError
from everstep.journal.view import RunView, UpdateView
from everstep.report.parts.codes import CODES


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "subject", metavar="ID|CODE", help="an incident (i3, last), an update (v1) or a verdict code (ES-P09)"
    )
    add_run_arguments(parser)


def run(given: argparse.Namespace) -> int:
    if given.subject.upper().startswith("ES-"):
        return _explain_code(given.subject.upper(), given.json)
    opened = open_run(given.run, given.run_dir)
    update = opened.view.updates.get(given.subject)
    if update is not None:
        return _explain_update(opened.view, update, given.json)
    incident = find_incident(opened.view, given.subject)
    if given.json:
        from everstep.report.asjson import explanation_json

        show_json(explanation_json(opened.view, incident))
        return 0
    from everstep.report.incidents.explain import render_explanation

    show(render_explanation(opened.view, incident, style()))
    return 0


def _explain_update(view: RunView, update: UpdateView, as_json: bool) -> int:
    from everstep.report.updates import render_update, updates_json

    if as_json:
        show_json(next(each for each in updates_json(view) if each["id"] == update.version.id))
    else:
        show(render_update(view, update, style()))
    return 0


def _explain_code(name: str, as_json: bool) -> int:
    code = CODES.get(name)
    if code is None:
        raise ConfigError(f"no code {name}; there are: {', '.join(CODES)}; for lines in logs: everstep kb show {name}")
    if as_json:
        show_json(dataclasses.asdict(code))
        return 0
    from everstep.report.incidents.explain import render_code

    show(render_code(code, style()))
    return 0
