"""Where every second of every rank went; it always adds up to 100 %. Definitions: docs/goodput.md, or --glossary."""

import argparse

from everstep.cli.reading import add_run_arguments, open_run, show, show_json, style
from everstep.report.goodput import render_glossary, render_goodput


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run_arguments(parser)
    parser.add_argument("--glossary", action="store_true", help="what each bucket means")


def run(given: argparse.Namespace) -> int:
    if given.glossary:
        show(render_glossary())
        return 0
    opened = open_run(given.run, given.run_dir)
    if given.json:
        from everstep.report.asjson import goodput_json

        show_json(goodput_json(opened.view, opened.goodput, opened.asked))
    else:
        show(render_goodput(opened.view, opened.goodput, opened.asked, style()))
    return 0
